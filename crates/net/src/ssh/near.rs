//! The program's side, up to the command it asks for. Anybody may log in: who is inside is inside already.

use super::{
    Broken, HostKey,
    command::{self, BadCommand, Command},
    exchange::Side,
    pump::Channel,
    talk::{Both, Talk},
    wire::{Reader, Writer},
};

pub(super) const SERVICE_REQUEST: u8 = 5;
pub(super) const SERVICE_ACCEPT: u8 = 6;
pub(super) const USERAUTH_REQUEST: u8 = 50;
pub(super) const USERAUTH_FAILURE: u8 = 51;
pub(super) const USERAUTH_SUCCESS: u8 = 52;
pub(super) const GLOBAL_REQUEST: u8 = 80;
pub(super) const REQUEST_FAILURE: u8 = 82;
pub(super) const CHANNEL_OPEN: u8 = 90;
pub(super) const OPEN_CONFIRMATION: u8 = 91;
pub(super) const OPEN_FAILURE: u8 = 92;
pub(super) const CHANNEL_REQUEST: u8 = 98;
pub(super) const CHANNEL_SUCCESS: u8 = 99;
pub(super) const CHANNEL_FAILURE: u8 = 100;

/// Messages before the command; clients send a handful.
const MOST_MESSAGES: usize = 64;

/// What the program asks for. Its request is not answered yet.
pub(crate) struct Asked<S> {
    /// Where it asks.
    pub(super) talk: Talk<S>,
    pub(super) channel: Channel,
    /// Who it wants to be at the server.
    pub(crate) user: String,
    /// What it wants to be run there.
    pub(crate) command: Result<Command, BadCommand>,
    /// The version of git's protocol, `version=2`.
    pub(crate) protocol: Option<String>,
}

/// Speaks with a client until it asks for a command. It believes that it speaks with `host`.
pub(crate) async fn hear<S: Both>(stream: S, key: &HostKey, host: &str) -> Result<Asked<S>, Broken> {
    let mut talk = Talk::new(stream, Side::Server(key.0.clone(), key.0.certify(host)?))?;
    let mut login = Login::default();
    for _ in 0..MOST_MESSAGES {
        let message = talk.message().await?;
        let (answer, asked) = login.take(&message)?;
        if let Some(answer) = answer {
            talk.send(answer)?;
        }
        if let Some(text) = asked {
            let Login { user, protocol, channel } = login;
            let (user, channel) = user.zip(channel).ok_or(Broken::Early)?;
            return Ok(Asked { talk, channel, user, command: Command::parse(&text), protocol });
        }
    }
    Err(Broken::Flood)
}

/// Who, and with which channel.
#[derive(Default)]
struct Login {
    user: Option<String>,
    channel: Option<Channel>,
    protocol: Option<String>,
}

/// What is said to a message, and the command if it asks for one.
type Taken = (Option<Vec<u8>>, Option<String>);

impl Login {
    fn take(&mut self, message: &[u8]) -> Result<Taken, Broken> {
        let mut reader = Reader::new(message);
        match reader.byte()? {
            SERVICE_REQUEST => {
                let service = reader.string()?;
                match service {
                    b"ssh-userauth" => Ok((Some(Writer::new(SERVICE_ACCEPT).string(service).done()), None)),
                    _ => Err(Broken::Early),
                }
            }
            USERAUTH_REQUEST => {
                let (user, service) = (reader.text()?, reader.string()?);
                if service != b"ssh-connection" || self.user.is_some() || !command::is_user(user) {
                    return Err(Broken::Early);
                }
                self.user = Some(user.to_owned());
                Ok((Some(vec![USERAUTH_SUCCESS]), None))
            }
            _ if self.user.is_none() => Err(Broken::Early),
            GLOBAL_REQUEST => Ok((refused_globally(reader)?, None)),
            CHANNEL_OPEN => Ok((Some(self.open(reader)?), None)),
            CHANNEL_REQUEST => self.request(reader),
            _ => Err(Broken::Early),
        }
    }

    /// One session, and nothing that leads elsewhere.
    fn open(&mut self, mut reader: Reader<'_>) -> Result<Vec<u8>, Broken> {
        let kind = reader.string()?;
        let (theirs, window, most) = (reader.number()?, reader.number()?, reader.number()?);
        if kind != b"session" || self.channel.is_some() {
            return Ok(refused_channel(theirs));
        }
        self.channel = Some(Channel::new(theirs, window, most));
        Ok(Channel::confirm(theirs))
    }

    fn request(&mut self, mut reader: Reader<'_>) -> Result<Taken, Broken> {
        let Some(channel) = &self.channel else { return Err(Broken::Early) };
        let (_, kind, wants_answer) = (reader.number()?, reader.string()?, reader.flag()?);
        let answer = |kind: u8| wants_answer.then(|| Writer::new(kind).number(channel.theirs).done());
        match kind {
            b"env" => {
                let (name, value) = (reader.string()?, reader.text()?);
                if name != b"GIT_PROTOCOL" || !command::is_protocol(value) {
                    return Ok((answer(CHANNEL_FAILURE), None));
                }
                self.protocol = Some(value.to_owned());
                Ok((answer(CHANNEL_SUCCESS), None))
            }
            // Answered once it is decided.
            b"exec" => Ok((None, Some(reader.text()?.to_owned()))),
            // So that the person at the client reads why.
            b"shell" | b"subsystem" => Ok((None, Some(String::new()))),
            _ => Ok((answer(CHANNEL_FAILURE), None)),
        }
    }
}

/// What is said to a request about the whole connection.
pub(super) fn refused_globally(mut reader: Reader<'_>) -> Result<Option<Vec<u8>>, Broken> {
    reader.string()?;
    Ok(reader.flag()?.then(|| vec![REQUEST_FAILURE]))
}

/// What is said to whoever wants a further channel.
pub(super) fn refused_channel(theirs: u32) -> Vec<u8> {
    const PROHIBITED: u32 = 1;
    Writer::new(OPEN_FAILURE).number(theirs).number(PROHIBITED).string(b"not carried").string(b"").done()
}

impl<S: Both> Asked<S> {
    /// Tells the program that what it asked for is run.
    pub(super) fn accept(&mut self) -> Result<(), Broken> {
        self.talk.send(Writer::new(CHANNEL_SUCCESS).number(self.channel.theirs).done())
    }

    /// Tells the program why not, where its person reads it, and ends.
    pub(crate) async fn refuse(mut self, why: &str) -> Result<(), Broken> {
        self.accept()?;
        let theirs = self.channel.theirs;
        let text = format!("airlock: {why}\n");
        // The window of a client is never so small; if it is, it reads nothing.
        if usize::try_from(self.channel.window).is_ok_and(|window| window >= text.len()) {
            self.talk.send(Channel::errors(theirs, text.as_bytes()))?;
        }
        self.talk.send(Channel::status(theirs, REFUSED))?;
        self.talk.send(Channel::end(theirs))?;
        self.talk.send(Channel::close(theirs))?;
        self.talk.flush().await?;
        // Until the program has read it: what is reset before is lost.
        while self.talk.step().await.is_ok() {}
        Ok(())
    }
}

/// The exit status of what was refused: git's own for what is fatal.
const REFUSED: u32 = 128;
