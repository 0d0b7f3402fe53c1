//! `airlock images inspect --remote`: what a registry has under a name, without its layers.

use crate::{
    args::InspectImagesArgs,
    commands::print_json,
    config,
    failure::{Failure, Outcome},
    home,
    pulling::{self, Wish},
};
use airlock_images::{
    manifest::{Config, Manifest},
    reference::Reference,
    registry::{self, Remote},
};
use serde::Serialize;
use std::io::{self, Write as _};

/// What is told of it.
#[derive(Serialize)]
struct Told {
    name: String,
    digest: String,
    manifest_digest: String,
    id: String,
    size_bytes: u64,
    manifest: Manifest,
    config: Config,
}

pub(super) fn inspect(args: &InspectImagesArgs) -> Outcome {
    let own = config::own(&home::path()?)?;
    let mut told = Vec::new();
    for text in &args.images {
        let name = text.parse::<Reference>().map_err(|err| Failure::new(err.to_string()).code(2))?;
        let name = pulling::whole_name(&own, &name);
        let wish = Wish { platform: args.platform.clone(), is_plain: args.connection.plain_http };
        let settings = pulling::settings(&own, &name, &wish)?;
        let remote = registry::look(&name, &settings);
        let remote = remote.map_err(|err| pulling::failed(format!("could not look at {name}"), &err))?;
        told.push(Told::of(&name, remote));
    }
    if args.json {
        told.iter().try_for_each(print_json)?;
        return Ok(0);
    }
    let text = serde_json::to_string_pretty(&told);
    writeln!(io::stdout(), "{}", text.map_err(|err| Failure::because("could not write JSON", &err))?)?;
    Ok(0)
}

impl Told {
    fn of(name: &Reference, remote: Remote) -> Told {
        let size = remote.manifest.layers.iter().fold(0u64, |sum, layer| sum.saturating_add(layer.size));
        Told {
            name: name.to_string(),
            digest: remote.digest.to_string(),
            manifest_digest: remote.manifest_digest.to_string(),
            id: remote.manifest.config.digest.to_string(),
            size_bytes: size,
            manifest: remote.manifest,
            config: remote.config,
        }
    }
}
