//! `airlock prefetch`: what a later start needs is here before it.

use crate::{
    args::{Backend, PrefetchArgs},
    commands::images,
    config,
    failure::{Failure, Outcome},
    home, place,
    pulling::{self, Form, Show, Way, Wish},
    say::say,
};
use airlock_images::{reference::Reference, store::Store};

pub(crate) fn prefetch(args: &PrefetchArgs) -> Outcome {
    let home = home::path()?;
    let own = config::own(&home)?;
    drop(home::store()?);
    let store = Store::open(&home).map_err(Failure::from)?;
    let form = Form::of(args.json, args.quiet);
    if args.backend == Some(Backend::Microvm) {
        place::fetch(&home, form.voice())?;
    }
    let mut made = Vec::new();
    for variant in &args.variants {
        made.push(images::prefetch(variant, form.voice())?);
    }
    let mut names = match args.names.as_slice() {
        [] if args.backend.is_some() => Vec::new(),
        [] if made.is_empty() => named_here(&home, &own)?,
        names => names.to_vec(),
    };
    names.append(&mut made);
    if names.is_empty() && args.backend.is_none() {
        say(form.voice(), "nothing to fetch: sandboxes here are made of the host's own files");
    }
    let wish = Wish { platform: None, is_plain: args.connection.plain_http };
    for name in names {
        if let Ok(image) = store.find(&name.to_string()) {
            pulling::unpack(&store, &image)?;
            say(form.voice(), &format!("{name} is here"));
            continue;
        }
        let name = pulling::whole_name(&own, &name);
        let settings = pulling::settings(&own, &name, &wish)?;
        let image = pulling::pull(&store, &name, &settings, &mut Show::new(form, Way::Down))?;
        images::tell(&image, form)?;
    }
    Ok(0)
}

/// The image that the settings of this directory name.
fn named_here(home: &std::path::Path, own: &config::own::Own) -> Result<Vec<Reference>, Failure> {
    let directory = std::env::current_dir()
        .map_err(|err| Failure::because("the current directory cannot be found", &err))?;
    let flags = own.flags();
    let project = config::project(config::Wanted::Here(&directory), home, &flags)?;
    let image = project.and_then(|project| project.settings.image).or(flags.image);
    match image.as_deref() {
        None | Some("host") => Ok(Vec::new()),
        Some(name) => {
            let parsed = name.parse::<Reference>();
            Ok(vec![parsed.map_err(|err| Failure::new(err.to_string()).code(2))?])
        }
    }
}
