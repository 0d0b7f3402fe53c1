//! Files that several sandboxes share: layers below their disks, snapshots, forks.
//!
//! ```text
//! layers/<id>/{layer.json,disk/…}     what a sandbox wrote until some moment; never written again
//! sandboxes/<id>/layers.json          which layers lie below its disk, topmost first
//! snapshots/<id>/snapshot.json        a name, a spec and layers
//! ```
//!
//! A layer belongs to whoever names it. It goes when nobody does ([`layers::collect`]). The disk of a stopped sandbox becomes
//! a layer by one rename ([`take`]): the layer stands and is named before, so that whenever this process is killed, either the
//! disk is still the sandbox's and the new layer is empty, or the layer is whole ([ADR 19](../../../docs/adr/0019-snapshots.md)).
//!
//! - [`layers`]: layers, who names them, and how they go
//! - [`take`]: what a sandbox wrote as a layer: renamed where it stands still, copied where it runs
//! - [`fork`]: sandboxes that go on from layers
//! - [`memory`]: the memory of a machine, where that was saved too
//! - [`kept`]: snapshots, by name and id
//! - [`archive`]: snapshots as one portable file
//! - [`root`]: the root of a sandbox that was made of an image, as layers and as a whole
//! - [`workspace`]: changes of a workspace that lie in layers

pub mod archive;
pub mod fork;
pub mod kept;
pub mod layers;
pub mod memory;
pub mod root;
pub mod take;
pub mod workspace;

pub use fork::Origin;
pub use layers::{Chain, Guard, Layer, LayerId};

use crate::{
    plan::{chain, refusal},
    store,
};
use airlock_protocol::control::Refusal;

/// What the state directory said, as a refusal.
fn refused(err: &store::Error) -> Refusal {
    refusal(err.exit_code(), &chain(err), None, err.fix().as_deref())
}
