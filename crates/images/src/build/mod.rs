//! Building images of Dockerfiles: everything that needs no sandbox.
//!
//! - [`dockerfile`]: a whole file, its stages and what each needs; [`lines`], [`parse`], [`instruction`]: its lines
//! - [`words`]: variables; [`mount`]: `RUN --mount`; [`duration`]: times as Go writes them
//! - [`glob`], [`ignore`]: patterns of sources, `.dockerignore`
//! - [`scope`], [`state`]: arguments, and what a stage has become; [`context`], [`tree`], [`transfer`], [`layer`]: files
//!
//! ```
//! use airlock_images::build::dockerfile::Dockerfile;
//!
//! let fault = Dockerfile::parse("FROM scratch\nNOPE\n").unwrap_err();
//! assert_eq!(fault.line, 2);
//! ```

pub mod chmod;
pub mod context;
pub mod dockerfile;
pub mod duration;
mod fault;
pub mod glob;
mod gotext;
pub mod ignore;
pub mod instruction;
pub mod layer;
pub mod lines;
pub mod mount;
pub mod parse;
pub mod path;
pub mod repository;
pub mod scope;
pub mod state;
pub mod transfer;
pub mod tree;
pub mod words;

pub use fault::Fault;
