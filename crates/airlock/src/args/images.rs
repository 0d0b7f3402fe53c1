//! The flags of `images`.

use std::path::PathBuf;

use airlock_images::{archive::Form, manifest::Platform, reference::Reference};
use clap::{Args, Subcommand, ValueEnum};

use super::registry::{ConnectionArgs, PullArgs, PushArgs, platform};

#[derive(Debug, Args)]
#[command(after_help = "\
IMAGE is a name with or without a tag (`latest` if none is given), NAME@DIGEST, an id or an unambiguous
beginning of one. Images are shared by all sandboxes of a state directory.

Examples:
  airlock images load -i tool.tar.gz
  airlock run --image tool:1 -- make
  airlock images ls
  airlock images prune --all")]
pub(crate) struct ImagesArgs {
    #[command(subcommand)]
    pub(crate) verb: ImagesVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImagesVerb {
    /// List images
    #[command(visible_alias = "list")]
    Ls(ListImagesArgs),
    /// Show everything known about images
    Inspect(InspectImagesArgs),
    /// Show how an image came to be, newest first
    History(HistoryArgs),
    /// Give an image one more name
    Tag(TagArgs),
    /// Take names away, and remove images that have none left and that no sandbox uses
    Rm(RemoveImagesArgs),
    /// Remove images without a name, and content that belongs to none
    Prune(PruneImagesArgs),
    /// Show how much room images take, alone and shared
    Du(UsageArgs),
    /// Get images from their registries
    Pull(PullArgs),
    /// Send an image to a registry
    Push(PushArgs),
    /// Load images from an archive or an OCI layout
    Load(LoadArgs),
    /// Write images to one archive
    Save(SaveArgs),
    /// Make an image of a plain root file system
    Import(ImportImageArgs),
    /// Make an image of Debian's packages
    Make(MakeImageArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Packages come by this host's own apt, with its sources, keys and proxies, and are set up in sandboxes without a
network. What was downloaded stays in ~/.cache/airlock/packages for the next time.

A recipe of your own is a file in TOML:
  about = \"what is in it\"
  extends = \"minimal\"
  packages = [\"ruby\", \"sqlite3\"]
  command = [\"irb\"]

Examples:
  airlock images make --list
  airlock images make minimal && airlock run --image airlock/minimal -- python3 --version
  airlock images make ./ruby.toml -t team/ruby:1")]
pub(crate) struct MakeImageArgs {
    /// Which: minimal, standard, full, or the path of a recipe
    #[arg(value_name = "VARIANT|FILE.toml", required_unless_present = "list")]
    pub(crate) variant: Option<String>,
    /// What it is called (default: airlock/VARIANT)
    #[arg(short, long, value_name = "NAME")]
    pub(crate) tag: Option<Reference>,
    /// List what can be made, with sizes
    #[arg(long)]
    pub(crate) list: bool,
    /// Ask no package source: take what was downloaded before
    #[arg(long)]
    pub(crate) offline: bool,
    /// Only the id
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// One JSON object, or one per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  airlock images ls
  airlock images ls 'team/*'
  airlock images ls --json | jq -r .id")]
pub(crate) struct ListImagesArgs {
    /// Only images with a name like this; `*` stands for anything
    #[arg(value_name = "NAME")]
    pub(crate) pattern: Option<String>,
    /// Those that are only kept for builds too
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Only ids
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// Ids and digests in full
    #[arg(long, conflicts_with = "json")]
    pub(crate) no_trunc: bool,
    /// One JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InspectImagesArgs {
    /// Which images
    #[arg(required = true, value_name = "IMAGE")]
    pub(crate) images: Vec<String>,
    /// One JSON object per line, instead of one list for people
    #[arg(long)]
    pub(crate) json: bool,
    /// What its registry has: manifest and config, without getting its layers
    #[arg(long)]
    pub(crate) remote: bool,
    /// For another platform than this host's, such as linux/arm64
    #[arg(long, value_name = "OS/ARCH[/VARIANT]", value_parser = platform, requires = "remote")]
    pub(crate) platform: Option<Platform>,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// Which image
    #[arg(value_name = "IMAGE")]
    pub(crate) image: String,
    /// Commands in full
    #[arg(long, conflicts_with = "json")]
    pub(crate) no_trunc: bool,
    /// Only digests of layers
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// One JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TagArgs {
    /// Which image
    #[arg(value_name = "IMAGE")]
    pub(crate) image: String,
    /// Its new name; another image that has it loses it
    #[arg(value_name = "NAME")]
    pub(crate) name: Reference,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A name is taken away; with its last name an image goes, unless a sandbox uses it. By its id an image goes with
its name.

Examples:
  airlock images rm tool:1
  airlock images rm $(airlock images ls -q)")]
pub(crate) struct RemoveImagesArgs {
    /// Which images
    #[arg(required = true, value_name = "IMAGE")]
    pub(crate) images: Vec<String>,
    /// Take names away also where a sandbox uses the image, which then stays; all of them if it is named by its id
    #[arg(short, long)]
    pub(crate) force: bool,
    /// One JSON object per image
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PruneImagesArgs {
    /// Every image that no sandbox uses, what is kept for builds, and downloads that were not finished
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) force: bool,
    /// One JSON object; does not ask either
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UsageArgs {
    /// One JSON object per image, and one with the sums
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Takes what `docker save`, `podman save`, `skopeo copy` and builders write: docker-archive or OCI layout, as it is or
compressed by gzip, bzip2, xz or zstd, or an OCI layout in a directory. Nothing of it is unpacked before its digest
was checked.

Examples:
  airlock images load -i tool.tar.gz
  docker save tool:1 | airlock images load")]
pub(crate) struct LoadArgs {
    /// From this file or directory (default: standard input)
    #[arg(short, long, value_name = "PATH")]
    pub(crate) input: Option<PathBuf>,
    /// Only ids
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// One JSON object per image
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  airlock images save -o tool.tar tool:1
  airlock images save tool:1 | docker load
  airlock images save --format oci --compress zstd -o tool.tar.zst tool:1")]
pub(crate) struct SaveArgs {
    /// Which images; one that is named by its id is saved with all its names
    #[arg(required = true, value_name = "IMAGE")]
    pub(crate) images: Vec<String>,
    /// To this file (default: standard output)
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// As docker writes it, with layers that are not compressed; or as an OCI layout with every blob as it came
    #[arg(long, value_enum, default_value = "docker")]
    pub(crate) format: SaveFormat,
    /// Compress the whole archive: gzip, bzip2, xz, zstd
    #[arg(long, value_name = "HOW", default_value = "none")]
    pub(crate) compress: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SaveFormat {
    Docker,
    Oci,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The archive may be compressed by gzip, bzip2, xz or zstd. SOURCE_DATE_EPOCH, if it is set, is the time at which the
image was made.

Examples:
  airlock images import --change 'CMD [\"sh\"]' rootfs.tar.gz base:1
  debootstrap stable root && tar -C root -c . | airlock images import - debian")]
pub(crate) struct ImportImageArgs {
    /// An archive of a root file system; `-` for standard input
    #[arg(value_name = "FILE|-")]
    pub(crate) file: PathBuf,
    /// What to call it
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<Reference>,
    /// How it is run, as a Dockerfile says it: CMD, ENTRYPOINT, ENV, USER, WORKDIR…; repeatable
    #[arg(short, long = "change", value_name = "INSTRUCTION")]
    pub(crate) changes: Vec<String>,
    /// What is said of it in its history
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) message: Option<String>,
    /// What it runs on (default: this machine)
    #[arg(long, value_name = "OS/ARCH")]
    pub(crate) platform: Option<Platform>,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
