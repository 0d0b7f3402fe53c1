//! A proxy as companies have them: `CONNECT`, and everything else is refused.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

/// Takes TLS off what comes, and prints where it listens.
const TERMINATOR: &str = r#"
import asyncio, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
async def pour(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
async def serve(reader, writer):
    far = await asyncio.open_connection("127.0.0.1", int(sys.argv[3]))
    await asyncio.gather(pour(reader, far[1]), pour(far[0], writer), return_exceptions=True)
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"#;

/// A proxy in this process that leads every name to one server.
pub struct Proxy {
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// One that leads to this address, whatever it is asked for.
    pub fn to(server: &str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (server, heard) = (server.to_owned(), Arc::clone(&asked));
        // It ends with the process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (server, heard) = (server.clone(), Arc::clone(&heard));
                thread::spawn(move || serve(stream, &server, &heard));
            }
        });
        Proxy { port, asked }
    }

    /// As settings and variables have it.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The same, spoken to in TLS with the certificate `server.pem` of a folder.
    pub fn in_tls(&self, folder: &Path) -> InTls {
        let mut command = Command::new("python3");
        command.args(["-c", TERMINATOR]).arg(folder.join("server.pem")).arg(folder.join("server.key"));
        command.arg(self.port.to_string()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3 runs");
        let mut port = String::new();
        let said = child.stdout.take().expect("a pipe");
        BufReader::new(said).read_line(&mut port).expect("a port");
        InTls { child, port: port.trim().to_owned() }
    }

    /// Where it was asked to lead, in order.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A proxy that is spoken to in TLS.
pub struct InTls {
    child: Child,
    port: String,
}

impl InTls {
    /// As settings and variables have it.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }
}

impl Drop for InTls {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(stream: TcpStream, server: &str, heard: &Mutex<Vec<String>>) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut header = String::new();
    while reader.read_line(&mut header)? > 2 {
        header.clear();
    }
    let Some(target) = line.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()) else {
        return stream.write_all(b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n");
    };
    heard.lock().unwrap_or_else(PoisonError::into_inner).push(target.to_owned());
    let mut far = TcpStream::connect(server)?;
    stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
    let (mut back, mut near) = (far.try_clone()?, stream.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut back, &mut near);
        near.shutdown(std::net::Shutdown::Both)
    });
    io::copy(&mut reader, &mut far)?;
    far.shutdown(std::net::Shutdown::Write)
}
