"""Where everything is in the virtual internet. The tests know the same addresses (`tests/src/internet.rs`)."""

# The two ends of the cable. The host's own address is a public one, as that of many servers is.
HOST_V4, PEER_V4 = "185.199.7.10", "185.199.7.1"
HOST_V6, PEER_V6 = "2600:1f00:7::10", "2600:1f00:7::1"

NAMESERVER = "93.184.216.53"
WEB_V4, WEB_V6 = "93.184.216.34", "2600:9000:5::34"
SHARED = "151.101.1.69"  # many tenants behind one address
GIT = "140.82.112.3"
SSH = "93.184.216.22"
DATABASE = "93.184.216.54"
HOSTILE = "93.184.216.66"
TUNNEL, IODINE = "93.184.216.77", "93.184.216.78"
PROXY = "93.184.216.88"
# Servers of HTTP that people run, one address each; and one that reads requests as badly as can be.
NGINX, HAPROXY, APACHE, NODE, NAIVE = (f"93.184.216.{number}" for number in range(101, 106))
# WebSockets, events, trailers, slow answers; nghttpd beside them. gRPC.
STREAMS, GRPC = "93.184.216.106", "93.184.216.107"
BAD_CERTIFICATES = "93.184.216.109"
# A store that wants signatures.
AWS = "93.184.216.108"

# What no name may lead to unless a rule says so, or ever. A server listens there, so that a leak is a fact.
PRIVATE = ["10.20.0.5", "10.99.0.5", "172.16.5.5", "192.168.5.5", "100.64.0.9", "fd00:20::5"]
NEVER = ["169.254.169.254", "fd00:ec2::254"]

EVERYWHERE = [
    NAMESERVER, WEB_V4, WEB_V6, SHARED, GIT, SSH, DATABASE, HOSTILE, TUNNEL, IODINE, PROXY, NGINX, HAPROXY, APACHE, NODE, NAIVE,
    STREAMS, GRPC, BAD_CERTIFICATES, AWS, *PRIVATE, *NEVER,
]
CONTROL_PORT = 8001
