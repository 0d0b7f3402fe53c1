//! The flags of `cp`.

use super::values;
use clap::Args;

pub(super) const USAGE: &str = "\
airlock cp [OPTIONS] SRC|- SANDBOX:DST
       airlock cp [OPTIONS] SANDBOX:SRC DST|-";
pub(super) const HELP: &str = "\
SRC and DST mean what they mean to `cp -r`: into DST if that is a directory, else under that name; `DIR/.` means the
contents of a directory. `-` is a tar archive on stdin or stdout. A path inside is meant from `/`. A path of this
host with a `:` in it is written ./a:b.

What comes out is yours; what goes in belongs to the user that the sandbox runs as. Set-user-id bits, devices, sockets
and pipes are never copied. Links are copied as links; on the way out those that lead out of what is copied are left
out. A sandbox that does not run is opened for the copy without its program.

Examples:
  airlock cp web:/var/log/app.log .
  airlock cp src/. web:/srv/app
  airlock cp web:/data - | gzip > data.tar.gz
  tar c . | airlock cp - web:/srv";

#[derive(Debug, Args)]
pub(crate) struct CopyArgs {
    /// What to copy: a path of this host, SANDBOX:PATH, or - for a tar archive on stdin
    #[arg(value_name = "SRC")]
    pub(crate) source: String,
    /// Where to: SANDBOX:PATH, a path of this host, or - for a tar archive on stdout
    #[arg(value_name = "DST")]
    pub(crate) destination: String,
    /// Copy what SRC leads to if it is a link, not the link
    #[arg(short = 'L', long)]
    pub(crate) follow_link: bool,
    /// On the way out, copy also links that lead out of what is copied
    #[arg(long)]
    pub(crate) keep_links: bool,
    /// Most bytes that may come out
    #[arg(long, value_name = "SIZE", default_value = "16G", value_parser = values::size)]
    pub(crate) limit: u64,
    /// Say nothing but errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}
