"""A registry for npm, pip, cargo, go and Maven: each has one package, whose version 1.0.0 is ten days old and 1.1.0 an hour. Those of
go and Maven have another one (`timeless`) of which nobody tells the age.

`/packages/npm/`, `/packages/pypi/simple/`, `/packages/crates/index/`, `/packages/go/`, `/packages/maven/`, on every name of the
web server.
"""

import datetime
import email.utils
import gzip
import hashlib
import io
import json
import tarfile
import zipfile

NAME = "airlock-demo"
VERSIONS = {"1.0.0": datetime.timedelta(days=10), "1.1.0": datetime.timedelta(hours=1)}


def since(version):
    at = datetime.datetime.now(datetime.timezone.utc) - VERSIONS[version]
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def tar(files):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return gzip.compress(packed.getvalue(), mtime=0)


def tarball(version):
    manifest = json.dumps({"name": NAME, "version": version, "main": "index.js"})
    return tar({"package/package.json": manifest, "package/index.js": f"module.exports = '{version}'\n"})


def wheel(version):
    module, info = "airlock_demo.py", f"airlock_demo-{version}.dist-info"
    files = {
        module: f"version = '{version}'\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    return packed_in(files)


def crate(version):
    top = f"{NAME}-{version}"
    manifest = f'[package]\nname = "{NAME}"\nversion = "{version}"\nedition = "2021"\n[lib]\npath = "src/lib.rs"\n'
    return tar({f"{top}/Cargo.toml": manifest, f"{top}/src/lib.rs": f'pub const VERSION: &str = "{version}";\n'})


def packument(base):
    def manifest(version):
        packed = tarball(version)
        digest = hashlib.sha1(packed).hexdigest()
        url = f"{base}/packages/npm/{NAME}/-/{NAME}-{version}.tgz"
        return {"name": NAME, "version": version, "dist": {"tarball": url, "shasum": digest}}

    return {
        "name": NAME,
        "dist-tags": {"latest": "1.1.0"},
        "versions": {version: manifest(version) for version in VERSIONS},
        "time": {version: since(version) for version in VERSIONS},
    }


def simple():
    def file(version):
        name = f"airlock_demo-{version}-py3-none-any.whl"
        digest = hashlib.sha256(wheel(version)).hexdigest()
        return {"filename": name, "url": f"/packages/pypi/files/{name}", "hashes": {"sha256": digest},
                "upload-time": since(version), "size": len(wheel(version))}

    return {"meta": {"api-version": "1.1"}, "name": NAME, "versions": list(VERSIONS),
            "files": [file(version) for version in VERSIONS]}


def lines():
    def line(version):
        digest = hashlib.sha256(crate(version)).hexdigest()
        return json.dumps({"name": NAME, "vers": version, "deps": [], "cksum": digest, "features": {}, "yanked": False,
                           "pubtime": since(version)})

    return "".join(line(version) + "\n" for version in VERSIONS)


def packed_in(files):
    """A ZIP archive."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return packed.getvalue()


def go(path):
    """A proxy of modules (go.dev/ref/mod#goproxy-protocol)."""
    module, _, file = path.partition("/@v/")
    name = module.removeprefix("airlock.test/")
    if name not in ("demo", "timeless"):
        return None
    if file == "list":
        return "".join(f"v{version}\n" for version in VERSIONS).encode()
    for version in VERSIONS:
        if file == f"v{version}.info":
            told = {"Version": f"v{version}"}
            if name == "demo":
                told["Time"] = since(version)
            return json.dumps(told).encode()
        if file == f"v{version}.mod":
            return f"module {module}\n".encode()
        if file == f"v{version}.zip":
            top = f"{module}@v{version}"
            return packed_in({f"{top}/go.mod": f"module {module}\n", f"{top}/demo.go": f"package {name}\n"})
    return None


def maven(path):
    """A repository: files, and how old they are."""
    if path == "org/codehaus/plexus/plexus-utils/1.1/plexus-utils-1.1.jar":  # Maven gives one to every extension
        return packed_in({}), datetime.timedelta(days=1000)
    file, _, ending = path.rpartition(".")
    if ending == "sha1":
        made = maven(file)
        return made and (hashlib.sha1(made[0]).hexdigest().encode(), made[1])
    for name in ("demo", "timeless"):
        top, about = f"test/airlock/{name}", f"<groupId>test.airlock</groupId><artifactId>{name}</artifactId>"
        if path == f"{top}/maven-metadata.xml":
            listed = "".join(f"<version>{version}</version>" for version in VERSIONS)
            now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%d%H0000")  # its digest is asked for later
            return (f"<metadata>{about}<versioning><latest>1.1.0</latest><release>1.1.0</release><versions>{listed}</versions>"
                    f"<lastUpdated>{now}</lastUpdated></versioning></metadata>").encode(), None
        for version, age in VERSIONS.items():
            age = age if name == "demo" else None
            if path == f"{top}/{version}/{name}-{version}.pom":
                return f"<project><modelVersion>4.0.0</modelVersion>{about}<version>{version}</version></project>".encode(), age
            if path == f"{top}/{version}/{name}-{version}.jar":
                return packed_in({"version.txt": version}), age
    return None


def dated(path):
    """The field that says since when a file is there, where it says so."""
    made = maven(path.removeprefix("/packages/maven/")) if path.startswith("/packages/maven/") else None
    if not made or made[1] is None:
        return ""
    at = datetime.datetime.now(datetime.timezone.utc) - made[1]
    return f"Last-Modified: {email.utils.format_datetime(at, usegmt=True)}\r\n"


def answer(path, host):
    """Status, type and body."""
    base = f"https://{host}"
    path = path.removeprefix("/packages/")
    if path == f"npm/{NAME}":
        return 200, "application/json", json.dumps(packument(base)).encode()
    if path == f"pypi/simple/{NAME}/":
        return 200, "application/vnd.pypi.simple.v1+json", json.dumps(simple()).encode()
    if path == "crates/index/config.json":
        return 200, "application/json", json.dumps({"dl": f"{base}/packages/crates/dl", "api": base}).encode()
    if path == f"crates/index/ai/rl/{NAME}":
        return 200, "text/plain", lines().encode()
    found = go(path.removeprefix("go/")) if path.startswith("go/") else None
    found = (maven(path.removeprefix("maven/")) or [None])[0] if path.startswith("maven/") else found
    if found is not None:
        return 200, "application/octet-stream", found
    for version in VERSIONS:
        if path == f"npm/{NAME}/-/{NAME}-{version}.tgz":
            return 200, "application/octet-stream", tarball(version)
        if path == f"pypi/files/airlock_demo-{version}-py3-none-any.whl":
            return 200, "application/octet-stream", wheel(version)
        if path == f"crates/dl/{NAME}/{version}/download":
            return 200, "application/octet-stream", crate(version)
    return 404, "text/plain", b"no such package\n"
