//! What goes along with a request: nothing, bytes, or a file that is read as it goes.

use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Bytes;
use std::{
    cell::Cell,
    fmt,
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::Instant,
};

/// Bytes that are read at once.
const PIECE: usize = 256 * 1024;

/// What goes along.
#[derive(Clone, Default)]
pub enum Content {
    /// Nothing.
    #[default]
    None,
    /// These bytes.
    Bytes(Bytes),
    /// A whole file; it must not change meanwhile.
    File {
        /// The file.
        file: Rc<File>,
        /// Its length.
        length: u64,
        /// Told how many bytes were read, each time some are.
        told: Rc<dyn Fn(u64)>,
    },
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Content::None => f.write_str("None"),
            Content::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Content::File { length, .. } => write!(f, "File({length})"),
        }
    }
}

impl Content {
    /// The content as hyper sends it; `pulse` is when some of it was taken last.
    pub(super) fn body(&self, pulse: Rc<Cell<Instant>>) -> Body {
        let left = match self {
            Content::None => 0,
            Content::Bytes(bytes) => u64::try_from(bytes.len()).unwrap_or(u64::MAX),
            Content::File { length, .. } => *length,
        };
        Body { content: self.clone(), at: 0, left, pulse }
    }
}

/// Content on its way.
pub(super) struct Body {
    content: Content,
    at: u64,
    left: u64,
    pulse: Rc<Cell<Instant>>,
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let body = self.get_mut();
        if body.left == 0 {
            return Poll::Ready(None);
        }
        body.pulse.set(Instant::now());
        let piece = match &body.content {
            Content::None => return Poll::Ready(None),
            Content::Bytes(bytes) => bytes.clone(),
            Content::File { file, told, .. } => match read(file, body.at, body.left) {
                Ok(piece) => {
                    told(u64::try_from(piece.len()).unwrap_or(0));
                    piece
                }
                Err(err) => return Poll::Ready(Some(Err(err))),
            },
        };
        let length = u64::try_from(piece.len()).unwrap_or(body.left);
        body.at = body.at.saturating_add(length);
        body.left = body.left.saturating_sub(length);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

fn read(file: &File, at: u64, left: u64) -> io::Result<Bytes> {
    let mut piece = vec![0; PIECE.min(usize::try_from(left).unwrap_or(PIECE))];
    let length = file.read_at(&mut piece, at)?;
    if length == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter"));
    }
    piece.truncate(length);
    Ok(Bytes::from(piece))
}
