//! `airlock mount` and `airlock unmount`: what a running sandbox sees of this host.

use super::{find, lifecycle::ask};
use crate::{
    args::{MountArgs, UnmountArgs, mount::MountWord},
    failure::Outcome,
    home, mounts,
    spec::Host,
};
use airlock_protocol::control::{Request, Shown};

pub(crate) fn mount(mut args: MountArgs) -> Outcome {
    let sandbox = find(&home::store()?, &args.sandbox)?;
    mounts::settle_typed(&mut args.mount, &Host::current()?.directory)?;
    let shown = match args.mount {
        MountWord::Bind(mount) => Shown::Bind { mount },
        MountWord::Provided(mount) => Shown::Provided { mount },
    };
    ask(&sandbox, &Request::Mount(shown))?;
    Ok(0)
}

pub(crate) fn unmount(args: UnmountArgs) -> Outcome {
    let sandbox = find(&home::store()?, &args.sandbox)?;
    // As it was noted: without a slash at the end.
    let target = args.target.components().collect();
    ask(&sandbox, &Request::Unmount { target })?;
    Ok(0)
}
