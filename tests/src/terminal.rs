//! A terminal as a person sits at: keys are typed, the screen is read, the window is resized.

use crate::{
    DEADLINE,
    process::{Heard, wait_until},
};
use rustix::{
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Termios, Winsize, tcgetattr, tcsetwinsize},
};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{File, OpenOptions},
    io::Write as _,
    os::unix::{ffi::OsStrExt as _, fs::OpenOptionsExt as _, process::ExitStatusExt as _},
    process::{Child, Command},
    sync::Arc,
    time::Instant,
};

/// A terminal with one program on it, which is the leader of its session.
pub struct Terminal {
    keys: File,
    line: File,
    screen: Arc<Heard>,
    child: Option<Child>,
}

impl Terminal {
    /// A terminal of 24 rows and 80 columns on which nothing runs.
    pub fn new() -> Terminal {
        let keys =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&keys).and_then(|()| unlockpt(&keys)).expect("a terminal can be unlocked");
        let path = ptsname(&keys, Vec::new()).expect("a terminal has a name");
        let line = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(i32::try_from(rustix::fs::OFlags::NOCTTY.bits()).expect("a small number"))
            .open(OsStr::from_bytes(path.as_bytes()))
            .expect("a terminal can be opened");
        let keys = File::from(keys);
        let screen = Heard::of(keys.try_clone().ok());
        let terminal = Terminal { keys, line, screen, child: None };
        terminal.resize(24, 80);
        terminal
    }

    /// Starts a program with all its streams on this terminal, which controls it. The pid is the program's own.
    pub fn start(&mut self, command: &Command) -> u32 {
        let copy = || self.line.try_clone().expect("a descriptor can be copied");
        let mut on_terminal = Command::new("setsid");
        on_terminal.arg("--ctty").arg(command.get_program()).args(command.get_args()).env_clear();
        on_terminal.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        on_terminal.stdin(copy()).stdout(copy()).stderr(copy());
        command.get_current_dir().map(|dir| on_terminal.current_dir(dir));
        let child = on_terminal.spawn().expect("setsid runs");
        self.child.insert(child).id()
    }

    /// Types text; `\x03` is Ctrl-C.
    pub fn type_keys(&mut self, text: &str) {
        self.keys.write_all(text.as_bytes()).expect("keys can be typed");
    }

    /// Waits until the screen has shown this since it was last cleared; gives all of it.
    #[track_caller]
    pub fn wait_for(&self, text: &str) -> String {
        match self.screen.wait_for(text, Instant::now() + DEADLINE) {
            Some(screen) => screen,
            None => panic!("the screen never showed {text:?}: {:?}", self.screen.text()),
        }
    }

    /// What the screen has shown since it was last cleared.
    pub fn screen(&self) -> String {
        self.screen.text()
    }

    /// What a person sees now: the lines that are left of all that was written, moved over and cleared.
    pub fn seen(&self) -> Vec<String> {
        seen(&self.screen())
    }

    /// Forgets what the screen showed.
    pub fn clear(&self) {
        self.screen.clear();
    }

    /// Gives the window another size.
    pub fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.line, size).expect("a terminal has a size");
    }

    /// The modes the terminal has now.
    pub fn modes(&self) -> Termios {
        tcgetattr(&self.line).expect("a terminal has modes")
    }

    /// The line itself, for streams of another program.
    pub fn line(&self) -> File {
        self.line.try_clone().expect("a descriptor can be copied")
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("a program was started");
        kill_process(Pid::from_child(child), signal).expect("the program is there");
    }

    /// Waits until the program has ended; gives its code, or 128+n.
    pub fn wait(&mut self) -> i32 {
        let mut child = self.child.take().expect("a program was started");
        match wait_until(&mut child, Instant::now() + DEADLINE) {
            Some(status) => status.code().or(status.signal().map(|n| 128 + n)).expect("it ended"),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                panic!("the program on the terminal never ended: {:?}", self.screen.text());
            }
        }
    }
}

impl Default for Terminal {
    fn default() -> Terminal {
        Terminal::new()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The lines that a terminal shows after these bytes. It knows what our own progress uses, and no more.
fn seen(text: &str) -> Vec<String> {
    let mut lines: BTreeMap<usize, Vec<char>> = BTreeMap::new();
    let (mut row, mut column) = (0usize, 0usize);
    let mut rest = text.chars().peekable();
    while let Some(next) = rest.next() {
        let line = lines.entry(row).or_default();
        match next {
            '\r' => column = 0,
            '\n' => (row, column) = (row + 1, 0),
            '\x1b' => {
                rest.next_if_eq(&'[');
                let mut number = String::new();
                while let Some(digit) = rest.next_if(|next| next.is_ascii_digit() || *next == ';') {
                    number.push(digit);
                }
                match rest.next() {
                    Some('A') => row = row.saturating_sub(number.parse().unwrap_or(1)),
                    Some('K') => line.clear(),
                    _ => {}
                }
            }
            next => {
                line.resize(line.len().max(column + 1), ' ');
                line.iter_mut().skip(column).take(1).for_each(|letter| *letter = next);
                column += 1;
            }
        }
    }
    let mut lines: Vec<String> = lines.into_values().map(String::from_iter).collect();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_drawn_over_is_not_seen() {
        assert_eq!(seen("a\r\nb\r\n\x1b[2A\r\x1b[2Kc\n\r\x1b[2Kd\ne"), ["c", "d", "e"]);
        assert_eq!(seen("\x1b[2mdim\x1b[0m\r\n"), ["dim"]);
    }
}
