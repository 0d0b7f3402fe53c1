//! The flags of `secret`.

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  airlock secret ls web
  airlock secret set web                       read every value anew from where it is kept
  airlock secret set web GITHUB_TOKEN          only this one
  pass show token | airlock secret set web TOKEN -

A value is never typed as an argument, and never printed.")]
pub(crate) struct SecretArgs {
    #[command(subcommand)]
    pub(crate) verb: SecretVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SecretVerb {
    /// List a sandbox's secrets: names, where they may go, where their values come from
    Ls(ListSecretsArgs),
    /// Give a running sandbox's secrets other values, from the next request on
    Set(SetSecretArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ListSecretsArgs {
    /// Which sandbox
    #[arg(default_value = "-")]
    pub(crate) sandbox: String,
    /// One JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SetSecretArgs {
    /// Which sandbox
    pub(crate) sandbox: String,
    /// Which secret (default: all of them)
    pub(crate) name: Option<String>,
    /// `-`: the value is on stdin (default: it is read anew from where it is kept)
    #[arg(value_name = "-", value_parser = ["-"])]
    pub(crate) stdin: Option<String>,
}
