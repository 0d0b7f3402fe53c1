//! Root file systems.
//!
//! - [`host`]: the host's own directories as the root of a sandbox
//! - [`merged`]: small files of a stack of trees
//! - [`trust`]: where the programs of a root look for certificates they trust
//! - [`build`]: Dockerfiles, read and planned
//! - [`variants`]: images made of Debian's packages
//! - [`commit`]: an image of another one and of what was changed
//! - [`layer`]: layers of images, unpacked
//! - [`registry`]: images from and to registries
//! - [`digest`], [`mod@reference`], [`manifest`]: how images and their parts are named and described
//! - [`store`]: the images that are here
//! - [`archive`]: images in files

pub mod archive;
pub mod build;
pub mod commit;
pub mod digest;
pub mod host;
pub mod layer;
pub mod manifest;
pub mod merged;
pub mod reference;
pub mod registry;
pub mod store;
pub mod trust;
pub mod variants;
