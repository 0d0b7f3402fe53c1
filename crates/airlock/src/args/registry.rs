//! The flags of `images pull`, `images push` and `prefetch`.

use super::Backend;
use airlock_images::{manifest::Platform, reference::Reference};
use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
What travelled stays when a pull is interrupted, and the next one goes on with it. Several commands that pull the
same image get each layer once. What lets one in is read from Docker's config.json and the helpers it names.

Examples:
  airlock images pull registry.example/team/app:1.2
  airlock images pull --platform linux/arm64 registry.example/team/app
  airlock images pull --json registry.example/team/app | jq .")]
pub(crate) struct PullArgs {
    /// Which images: [REGISTRY/]NAME[:TAG][@DIGEST]
    #[arg(required = true, value_name = "NAME", value_parser = name)]
    pub(crate) names: Vec<Reference>,
    /// For another platform than this host's, such as linux/arm64
    #[arg(long, value_name = "OS/ARCH[/VARIANT]", value_parser = platform)]
    pub(crate) platform: Option<Platform>,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
    /// Say nothing but the id
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// What happens as JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  airlock images push registry.example/team/app:1.2
  airlock images push app registry.example/team/app:1.2    under another name")]
pub(crate) struct PushArgs {
    /// Which image: a name, an id or an unambiguous beginning of one
    #[arg(value_name = "IMAGE")]
    pub(crate) image: String,
    /// What it is called there (default: its own name)
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) name: Option<Reference>,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
    /// Say nothing but the digest
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// What happens as JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Pulls what is not here, and unpacks it. Without a name: the image that airlock.toml or config.toml name.

Examples:
  airlock prefetch
  airlock prefetch registry.example/team/app:1.2 registry.example/tools
  airlock prefetch --variant minimal")]
pub(crate) struct PrefetchArgs {
    /// Which images
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) names: Vec<Reference>,
    /// What this place needs: for microvm a kernel, from Debian's packages
    #[arg(long, value_enum, value_name = "PLACE", hide_possible_values = true)]
    pub(crate) backend: Option<Backend>,
    /// Make this variant of Debian's packages (`airlock images make --list`), if it is not here
    #[arg(long = "variant", value_name = "VARIANT")]
    pub(crate) variants: Vec<String>,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
    /// Say nothing
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// What happens as JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ConnectionArgs {
    /// Speak to the registry without TLS, this once
    #[arg(long)]
    pub(crate) plain_http: bool,
}

fn name(text: &str) -> Result<Reference, String> {
    text.parse::<Reference>().map_err(|err| err.to_string())
}

pub(super) fn platform(text: &str) -> Result<Platform, String> {
    text.parse::<Platform>().map_err(|err| err.to_string())
}
