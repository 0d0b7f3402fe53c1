"""Servers from packages: sshd, PostgreSQL, and the far ends of tunnels. They end with this process's PID namespace."""

import asyncio
import pathlib
import shutil

import places


async def run(*words, **options):
    process = await asyncio.create_subprocess_exec(*words, **options)
    if await process.wait() != 0:
        raise RuntimeError(f"{words} failed")


async def output(*words):
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    return (await process.communicate())[0].decode()


async def listening(address, port):
    """Until a server answers: nobody announces it."""
    for _ in range(3000):
        try:
            _, writer = await asyncio.open_connection(address, port)
            return writer.close()
        except OSError:
            await asyncio.sleep(0.02)
    raise RuntimeError(f"nothing listens on {address} {port}")


async def repository(folder):
    """`/git/hello.git`: one commit, pushes taken. `/git/parts.git`: the tag `v1`, then another commit, and the branch `draft`."""
    bare, work = folder / "git" / "hello.git", folder / "work"
    quiet = {"stdout": asyncio.subprocess.DEVNULL, "stderr": asyncio.subprocess.DEVNULL}
    who = ["-c", "user.name=virtual", "-c", "user.email=virtual@web.test"]
    await run("git", "init", "-q", "-b", "main", str(work), **quiet)
    (work / "README").write_text("hello from git\n")
    await run("git", "-C", str(work), "add", ".", **quiet)
    await run("git", "-C", str(work), *who, "commit", "-q", "-m", "first", **quiet)
    await run("git", "clone", "-q", "--bare", str(work), str(bare), **quiet)
    await run("git", "-C", str(bare), "config", "http.receivepack", "true")
    bare, work = folder / "git" / "parts.git", folder / "parts"
    git = ["git", "-C", str(work), *who]
    await run("git", "init", "-q", "-b", "main", str(work), **quiet)
    (work / "docs").mkdir()
    for text in ("one", "two"):
        (work / "docs" / "guide").write_text(f"guide {text}\n")
        (work / "README").write_text(f"readme {text}\n")
        await run(*git, "add", ".", **quiet)
        await run(*git, "commit", "-q", "-m", text, **quiet)
        if text == "one":
            await run(*git, "tag", "v1", **quiet)
    await run(*git, "checkout", "-q", "-b", "draft", **quiet)
    (work / "docs" / "guide").write_text("guide draft\n")
    await run(*git, "commit", "-q", "-a", "-m", "draft", **quiet)
    await run(*git, "checkout", "-q", "main", **quiet)
    await run("git", "clone", "-q", "--bare", str(work), str(bare), **quiet)
    # A commit that no branch names is given to who asks for it, as hosts of git do.
    await run("git", "-C", str(bare), "config", "uploadpack.allowAnySHA1InWant", "true")
    (folder / "parts.commit").write_text((await output(*git, "rev-parse", "v1")).strip())


async def ssh(folder, user):
    """Takes the key `ssh_client` and runs nothing but one command of its own."""
    for name in ("ssh_host", "ssh_client"):
        await run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
    (folder / "ssh_client").chmod(0o644)  # every test user copies it
    config = folder / "sshd_config"
    config.write_text(f"""
ListenAddress {places.SSH}:22
HostKey {folder}/ssh_host
AuthorizedKeysFile {folder}/ssh_client.pub
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PidFile none
AllowUsers {user}
ForceCommand cat; echo hello from ssh
""")
    shutil.chown(folder / "ssh_host", user)
    (folder / "known_hosts").write_text("ssh.test " + (folder / "ssh_host.pub").read_text())
    as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
    with (folder / "sshd.log").open("wb") as said:
        await asyncio.create_subprocess_exec(*as_user, "/usr/sbin/sshd", "-D", "-e", "-f", str(config), stderr=said)
        await git_over_ssh(folder, user)
        config = folder / "sshd_git_config"
        await asyncio.create_subprocess_exec(*as_user, "/usr/sbin/sshd", "-D", "-e", "-f", str(config), stderr=said)
    await listening(places.SSH, 22)
    await listening(places.SSH, 2222)


async def git_over_ssh(folder, user):
    """Port 2222: `acme/web.git` and `acme/other.git`, and whatever else somebody asks for. `ssh_commands` has what that was."""
    repositories, commands, shell = folder / "ssh_git", folder / "ssh_commands", folder / "ssh_shell"
    quiet = {"stdout": asyncio.subprocess.DEVNULL, "stderr": asyncio.subprocess.DEVNULL}
    who = ["-c", "user.name=virtual", "-c", "user.email=virtual@web.test"]
    work = folder / "ssh_work"
    await run("git", "init", "-q", "-b", "main", str(work), **quiet)
    (work / "README").write_text("hello from git over ssh\n")
    # More than fits into what may be sent ahead.
    (work / "large").write_bytes(b"".join(index.to_bytes(4, "big") * 2 + index.to_bytes(8, "little") for index in range(300000)))
    await run("git", "-C", str(work), "add", ".", **quiet)
    await run("git", "-C", str(work), *who, "commit", "-q", "-m", "first", **quiet)
    for name in ("web", "other"):
        await run("git", "clone", "-q", "--bare", str(work), str(repositories / "acme" / f"{name}.git"), **quiet)
    await run("chown", "-R", user, str(repositories))
    commands.touch()
    shutil.chown(commands, user)
    shell.write_text(f"""#!/bin/sh
echo "$SSH_ORIGINAL_COMMAND" >> {commands}
# As hosts of git do: a path from the root is one from where they have them.
cd {repositories} && exec sh -c "$(echo "$SSH_ORIGINAL_COMMAND" | sed "s#'/#'#")"
""")
    shell.chmod(0o755)
    (folder / "sshd_git_config").write_text(
        (folder / "sshd_config").read_text().replace(":22\n", ":2222\n")
        .replace("ForceCommand cat; echo hello from ssh", f"ForceCommand {shell}\nAcceptEnv GIT_PROTOCOL"))


async def database(folder):
    """A cluster of its own, everybody trusted, TLS offered."""
    programs = max(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    place = folder / "postgres"
    place.mkdir()
    shutil.chown(place, "postgres", "postgres")
    as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
    await run(*as_postgres, str(programs / "initdb"), "-D", str(place / "data"), "-A", "trust", "--no-sync", "--no-locale",
              stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, cwd=place)
    for name in ("leaf.pem", "leaf.key"):
        shutil.copy(folder / name, place / name)
        shutil.chown(place / name, "postgres", "postgres")
        (place / name).chmod(0o600)
    with (place / "data" / "pg_hba.conf").open("a") as rules:
        rules.write("host all all 0.0.0.0/0 trust\n")
    settings = {
        "listen_addresses": places.DATABASE, "unix_socket_directories": "", "fsync": "off", "shared_buffers": "16MB", "ssl": "on",
        "ssl_cert_file": str(place / "leaf.pem"), "ssl_key_file": str(place / "leaf.key"), "logging_collector": "off",
    }
    words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    with (folder / "postgres.log").open("wb") as said:
        await asyncio.create_subprocess_exec(
            *as_postgres, str(programs / "postgres"), "-D", str(place / "data"), *words, stdout=said, stderr=said, cwd=place)
    await listening(places.DATABASE, 5432)


async def tunnels(folder):
    """dns2tcp and iodine behind the name server, the first to reach the server that gives everything back; ptunnel for ICMP."""
    config = folder / "dns2tcpd.conf"
    config.write_text(f"listen = {places.TUNNEL}\nport = 53\nuser = nobody\nchroot = {folder}/empty\ndomain = tunnel.test\n"
                      f"resources = echo:{places.HOSTILE}:7000\n")
    (folder / "empty").mkdir()
    null = asyncio.subprocess.DEVNULL
    await asyncio.create_subprocess_exec("dns2tcpd", "-F", "-f", str(config), stdout=null, stderr=null)
    await asyncio.create_subprocess_exec("ptunnel", stdout=null, stderr=null)
    later.append(asyncio.ensure_future(iodine(folder)))


# What is begun and not waited for.
later = []


async def iodine(folder):
    """Its program is unpacked beside the servers once they run."""
    program = folder / "iodine/usr/sbin/iodined"
    while not program.exists():
        await asyncio.sleep(0.2)
    with (folder / "iodined.log").open("wb") as said:
        await asyncio.create_subprocess_exec(
            str(program), "-f", "-c", "-P", "secret", "-l", places.IODINE, "10.9.0.1/27", "iodine.test", stdout=said, stderr=said)
