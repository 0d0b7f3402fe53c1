//! The body of a `ClientHello` (RFC 8446 section 4.1.2, RFC 6066 section 3, RFC 7301, RFC 9849).

const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
const EARLY_DATA: u16 = 42;
const VERSIONS: u16 = 43;
/// TLS 1.2 in that list.
const TLS12: u16 = 0x0303;
/// `encrypted_client_hello`, and the `encrypted_server_name` of its drafts.
const ENCRYPTED: [u16; 2] = [0xfe0d, 0xffce];

/// A host name is at most this long; so is what may stand in SNI.
const NAME_MAX: usize = 255;

/// What a client says first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hello {
    /// The host it names, as written. Printable ASCII, one to 255 bytes.
    pub sni: Option<String>,
    /// Whether it carries an encrypted hello. A client that only pretends to (GREASE, RFC 9849 section 6.2) cannot be
    /// told from one that hides another name, so both count.
    pub ech: bool,
    /// Whether it says that data follow before the server has answered.
    pub early: bool,
    /// The protocols it offers.
    pub alpn: Vec<Vec<u8>>,
    /// Whether it takes TLS 1.3 only.
    pub only13: bool,
}

impl Hello {
    /// Reads the body of a `ClientHello`.
    pub(super) fn parse(body: &[u8]) -> Result<Hello, &'static str> {
        let mut at = Cursor(body);
        if at.byte()? != 3 {
            return Err("the ClientHello has an unknown version");
        }
        at.byte()?;
        at.take(32)?;
        let session = usize::from(at.byte()?);
        if session > 32 {
            return Err("the session id is too long");
        }
        at.take(session)?;
        let suites = at.vector()?;
        if suites.is_empty() || suites.len() % 2 != 0 {
            return Err("the list of cipher suites is not one");
        }
        let methods = usize::from(at.byte()?);
        if methods == 0 {
            return Err("the list of compression methods is empty");
        }
        at.take(methods)?;
        if at.is_empty() {
            return Ok(Hello::default());
        }
        let extensions = at.vector()?;
        if !at.is_empty() {
            return Err("something follows the extensions");
        }
        Hello::from_extensions(Cursor(extensions))
    }

    fn from_extensions(mut at: Cursor<'_>) -> Result<Hello, &'static str> {
        let mut hello = Hello::default();
        let mut kinds = Vec::new();
        while !at.is_empty() {
            let kind = at.short()?;
            let body = at.vector()?;
            kinds.push(kind);
            match kind {
                SERVER_NAME => hello.sni = Some(server_name(Cursor(body))?),
                ALPN => hello.alpn = protocols(Cursor(body))?,
                EARLY_DATA => hello.early = true,
                VERSIONS => hello.only13 = versions(Cursor(body)).is_ok_and(|all| !all.contains(&TLS12)),
                _ if ENCRYPTED.contains(&kind) => hello.ech = true,
                _ => {}
            }
        }
        kinds.sort_unstable();
        match kinds.windows(2).any(|pair| pair.first() == pair.last()) {
            true => Err("an extension is given twice"),
            false => Ok(hello),
        }
    }
}

/// Exactly one entry, a host name.
fn server_name(mut at: Cursor<'_>) -> Result<String, &'static str> {
    let mut list = Cursor(at.vector()?);
    if !at.is_empty() {
        return Err("something follows the server name");
    }
    if list.byte()? != 0 {
        return Err("the server name is of an unknown kind");
    }
    let name = list.vector()?;
    if !list.is_empty() {
        return Err("more than one server name is given");
    }
    if name.is_empty() || name.len() > NAME_MAX || !name.iter().all(u8::is_ascii_graphic) {
        return Err("the server name is no host name");
    }
    str::from_utf8(name).map(str::to_owned).map_err(|_| "the server name is no host name")
}

fn protocols(mut at: Cursor<'_>) -> Result<Vec<Vec<u8>>, &'static str> {
    let mut list = Cursor(at.vector()?);
    if !at.is_empty() || list.is_empty() {
        return Err("the list of protocols is not one");
    }
    let mut protocols = Vec::new();
    while !list.is_empty() {
        let length = usize::from(list.byte()?);
        if length == 0 {
            return Err("the name of a protocol is empty");
        }
        protocols.push(list.take(length)?.to_vec());
    }
    Ok(protocols)
}

/// The versions that a client takes (RFC 8446 section 4.2.1).
fn versions(mut at: Cursor<'_>) -> Result<Vec<u16>, &'static str> {
    let length = usize::from(at.byte()?);
    let mut list = Cursor(at.take(length)?);
    if !at.is_empty() || list.is_empty() {
        return Err("the list of versions is not one");
    }
    let mut versions = Vec::new();
    while !list.is_empty() {
        versions.push(list.short()?);
    }
    Ok(versions)
}

/// What is left to read.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or("the ClientHello ends too early")?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, &'static str> {
        let (byte, rest) = self.0.split_first().ok_or("the ClientHello ends too early")?;
        self.0 = rest;
        Ok(*byte)
    }

    fn short(&mut self) -> Result<u16, &'static str> {
        Ok(u16::from_be_bytes([self.byte()?, self.byte()?]))
    }

    /// A vector with a length of two bytes.
    fn vector(&mut self) -> Result<&'a [u8], &'static str> {
        let length = usize::from(self.short()?);
        self.take(length)
    }
}
