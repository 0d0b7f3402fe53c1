"""The virtual internet: every server that the network tests meet, in a network namespace of its own.

    unshare --net --pid --fork --kill-child /usr/bin/python3 main.py FOLDER USER LINK

`cargo xtask test` starts it, gives it one end of a cable named LINK and then a line on stdin. It makes its addresses,
starts its servers, puts what clients need (`ca.pem`, `ssh_client`, …) into FOLDER and says `ready`. It ends when stdin
does. No route leads out of its namespace.
"""

import asyncio
import pathlib
import subprocess
import sys

import aws
import certificates
import hostile
import log
import naive
import names
import origins
import packaged
import places
import streams
import web


def link_up(link):
    def ip(*words):
        subprocess.run(["ip", *words], check=True)

    ip("link", "set", "lo", "up")
    ip("address", "add", f"{places.PEER_V4}/24", "dev", link)
    ip("address", "add", f"{places.PEER_V6}/64", "dev", link, "nodad")
    ip("link", "set", link, "up")
    for address in places.EVERYWHERE:
        if ":" in address:
            ip("address", "add", f"{address}/128", "dev", "lo", "nodad")
        else:
            ip("address", "add", f"{address}/32", "dev", "lo")
    # sshd runs as an ordinary user.
    pathlib.Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")


async def main(folder, user, link):
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    link_up(link)
    await web.certificates(folder)
    await asyncio.gather(packaged.repository(folder), packaged.ssh(folder, user), packaged.database(folder), packaged.tunnels(folder))
    log.sniff(link)
    await asyncio.gather(log.serve(), names.serve(), web.Web(folder).serve(), hostile.serve(), naive.serve(folder),
                         streams.serve(folder), aws.serve(folder), origins.serve(folder, user), certificates.serve(folder))
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    print("up", flush=True)
    asyncio.run(main(pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
