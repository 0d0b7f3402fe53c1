//! `airlock images push`: an image goes to a registry.

use crate::{
    args::PushArgs,
    commands::print_json,
    config,
    failure::{Failure, Outcome},
    home,
    pulling::{self, Form, Show, Way, Wish},
};
use airlock_images::{
    reference::Reference,
    registry,
    store::{Image, Store},
};
use std::io::{self, Write as _};

pub(crate) fn push(args: &PushArgs) -> Outcome {
    let home = home::path()?;
    let own = config::own(&home)?;
    drop(home::store()?);
    let store = Store::open(&home).map_err(Failure::from)?;
    let image = store.find(&args.image).map_err(Failure::from)?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => own_name(&args.image, &image)?,
    };
    let name = pulling::whole_name(&own, &name).as_tag();
    let wish = Wish { platform: None, is_plain: args.connection.plain_http };
    let settings = pulling::settings(&own, &name, &wish)?;
    let form = Form::of(args.json, args.quiet);
    let mut show = Show::new(form, Way::Up);
    let pushed = registry::push(&store, &image, &name, &settings, &mut |event| show.event(event));
    let digest = pushed.map_err(|err| pulling::failed(format!("could not push {name}"), &err))?;
    let known = name.at(digest).to_string();
    match form {
        Form::Json => {
            print_json(&serde_json::json!({ "event": "pushed", "name": name.to_string(), "digest": digest }))?
        }
        Form::Quiet | Form::Text => writeln!(io::stdout(), "{known}")?,
    }
    Ok(0)
}

/// The name that was typed, or the only one that the image has.
fn own_name(typed: &str, image: &Image) -> Result<Reference, Failure> {
    if let Ok(name) = typed.parse::<Reference>()
        && image.names.contains(&name.as_tag())
    {
        return Ok(name);
    }
    match image.names.as_slice() {
        [only] => Ok(only.clone()),
        _ => Err(Failure::new(format!("it is not said under which name {} is pushed", image.id.short()))
            .code(2)
            .fix(format!("airlock images push {typed} REGISTRY/NAME:TAG"))),
    }
}
