//! `airlock images pull`: images come from registries.

use crate::{
    args::PullArgs,
    commands::print_json,
    config,
    failure::{Failure, Outcome},
    home,
    pulling::{self, Form, Show, Way, Wish},
    say::say_failure,
};
use airlock_images::store::{Image, Store};
use serde::Serialize;
use std::io::{self, Write as _};

pub(crate) fn pull(args: &PullArgs) -> Outcome {
    let home = home::path()?;
    let own = config::own(&home)?;
    // The state directory is made and checked by its own store.
    drop(home::store()?);
    let store = Store::open(&home).map_err(Failure::from)?;
    let wish = Wish { platform: args.platform.clone(), is_plain: args.connection.plain_http };
    let form = Form::of(args.json, args.quiet);
    let mut first = None;
    for name in &args.names {
        let name = pulling::whole_name(&own, name);
        let pulled = pulling::settings(&own, &name, &wish)
            .and_then(|settings| pulling::pull(&store, &name, &settings, &mut Show::new(form, Way::Down)));
        match pulled {
            Ok(image) => tell(&image, form)?,
            Err(failure) => match &first {
                None => first = Some(failure),
                Some(_) => say_failure(&failure),
            },
        }
    }
    first.map_or(Ok(0), Err)
}

/// What was pulled: its id.
pub(crate) fn tell(image: &Image, form: Form) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Pulled<'a> {
        event: &'static str,
        id: String,
        names: Vec<String>,
        digests: Vec<String>,
        created_at: Option<&'a str>,
        size_bytes: u64,
    }
    match form {
        Form::Json => print_json(&Pulled {
            event: "pulled",
            id: image.id.to_string(),
            names: image.names.iter().map(ToString::to_string).collect(),
            digests: image.digests.iter().map(ToString::to_string).collect(),
            created_at: image.config.created.as_deref(),
            size_bytes: image.size,
        }),
        Form::Quiet | Form::Text => Ok(writeln!(io::stdout(), "{}", image.id)?),
    }
}
