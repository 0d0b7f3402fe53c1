//! Renaming in an overlay: what moves is copied up first, what lies below its old name is hidden.

use super::{
    Overlay,
    copy::{Bytes, is_ours},
    merged::{Merged, State},
};
use crate::provider::types::{Kind, Name, Node, Rename, Result};
use rustix::io::Errno;

impl Overlay {
    pub(super) fn rename_in(
        &self,
        state: &mut State,
        from: (Node, Name<'_>),
        to: (Node, Name<'_>),
        how: Rename,
    ) -> Result<()> {
        let (source, target) = (state.get(from.0)?.clone(), state.get(to.0)?.clone());
        let moved = self.peek(&source, from.1)?;
        let replaced = match self.peek(&target, to.1) {
            Ok(_) if how == Rename::Keep => return Err(Errno::EXIST),
            Ok(replaced) => Some(replaced),
            Err(Errno::NOENT) if how == Rename::Exchange || is_ours(to.1.bytes()) => {
                return Err(Errno::NOENT);
            }
            Err(Errno::NOENT) => None,
            Err(err) => return Err(err),
        };
        let is_fixed = |merged: &Merged| merged.kind == Kind::Directory && merged.lower.is_some();
        if is_fixed(&moved)
            || replaced.as_ref().is_some_and(|other| how == Rename::Exchange && is_fixed(other))
        {
            return Err(Errno::XDEV);
        }
        let (above, into) =
            (self.raise(state, from.0, Bytes::Copied)?, self.raise(state, to.0, Bytes::Copied)?);
        self.raise_name(state, from)?;
        if how == Rename::Exchange {
            self.raise_name(state, to)?;
        } else if let Some(replaced) = &replaced {
            self.make_way(&moved, replaced, (into, to.1))?;
        } else {
            self.unhide(into, to.1)?;
        }
        self.upper.rename((above, from.1), (into, to.1), how)?;
        self.settle(state, (to.0, to.1), into, self.is_below(&target, to.1))?;
        if how == Rename::Exchange {
            self.settle(state, (from.0, from.1), above, self.is_below(&source, from.1))?;
        } else if self.is_below(&source, from.1) {
            self.hide(above, from.1)?;
        }
        Ok(())
    }

    /// Copies what has a name up.
    fn raise_name(&self, state: &mut State, (parent, name): (Node, Name<'_>)) -> Result<()> {
        let directory = state.get(parent)?.clone();
        let seen = self.see(&directory, name)?;
        let entry = self.register(state, parent, name, seen)?;
        let raised = self.raise(state, entry.node, Bytes::Copied);
        if let Some(gone) = state.forget(entry.node, 1) {
            self.let_go(&gone);
        }
        raised.map(drop)
    }

    /// What is about to be replaced must be of the same sort; a directory must be empty, and goes first.
    fn make_way(&self, moved: &Merged, replaced: &Merged, (into, name): (Node, Name<'_>)) -> Result<()> {
        match (moved.kind == Kind::Directory, replaced.kind == Kind::Directory) {
            (true, false) => Err(Errno::NOTDIR),
            (false, true) => Err(Errno::ISDIR),
            (false, false) => Ok(()),
            (true, true) if !self.merge(replaced)?.is_empty() => Err(Errno::NOTEMPTY),
            (true, true) => match replaced.upper {
                Some(upper) => self.remove_directory(into, name, upper),
                None => Ok(()),
            },
        }
    }

    /// A directory that came to lie over another one shows nothing of it.
    fn settle(
        &self,
        state: &mut State,
        (parent, name): (Node, Name<'_>),
        into: Node,
        is_below: bool,
    ) -> Result<()> {
        let entry = self.upper.lookup(into, name)?;
        state.renamed(entry.node, parent, name.bytes());
        let settled = match entry.attributes.kind {
            Kind::Directory if is_below => self.make_opaque(entry.node),
            _ => Ok(()),
        };
        self.upper.forget(entry.node, 1);
        settled
    }
}
