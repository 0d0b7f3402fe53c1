"""gRPC with TLS, without generated code: `/test.Echo/Once` gives a message back, `/test.Echo/Thrice` three times, `/test.Echo/Fail`
fails with a status of its own, `/test.Echo/Chat` answers each message as it comes."""

import pathlib
import sys
from concurrent import futures

sys.path.append("/usr/lib/python3/dist-packages")
import grpc  # noqa: E402


def once(request, context):
    context.set_trailing_metadata((("checked", "yes"),))
    return request


def thrice(request, context):
    for _ in range(3):
        yield request


def fail(request, context):
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "as asked")


def chat(requests, context):
    for request in requests:
        yield b"heard " + request


def main(folder, address):
    server = grpc.server(futures.ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Echo", {
        "Once": grpc.unary_unary_rpc_method_handler(once), "Thrice": grpc.unary_stream_rpc_method_handler(thrice),
        "Fail": grpc.unary_unary_rpc_method_handler(fail), "Chat": grpc.stream_stream_rpc_method_handler(chat),
    })])
    pair = ((folder / "leaf.key").read_bytes(), (folder / "leaf.pem").read_bytes())
    server.add_secure_port(f"{address}:443", grpc.ssl_server_credentials([pair]))
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2])
