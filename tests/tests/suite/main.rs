//! Everything a user can see, as one binary: it is copied and run again as other users.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test says what it expected by failing"
)]

mod attacks_descriptors;
mod attacks_files;
mod attacks_hosts;
mod attacks_http;
mod attacks_http_answers;
mod attacks_http_limits;
mod attacks_images;
mod attacks_kernel;
mod attacks_machine;
mod attacks_net;
mod attacks_net_names;
mod attacks_net_tunnels;
mod attacks_project;
mod attacks_provided;
mod attacks_restart;
mod attacks_review;
mod attacks_workspace;
mod churn;
mod clouds;
mod config;
mod cp;
mod exec;
mod files;
mod image;
mod images_build;
mod images_build_docker;
mod images_damaged;
mod images_layers;
mod images_make;
mod images_registry;
mod images_run;
mod images_store;
mod keeper;
mod limits;
mod limits_disk;
mod microvm;
mod microvm_disk;
mod microvm_flags;
mod microvm_memory;
mod net;
mod net_clients;
mod net_config;
mod net_git_ssh;
mod net_ledger;
mod net_live;
mod net_names;
mod net_policy;
mod net_proxy;
mod net_publish;
mod net_relay;
mod net_rules;
mod net_tls;
mod opened;
mod opened_rules;
mod packages;
mod posix;
mod probe;
mod provided;
mod provided_host;
mod review;
mod run;
mod scripts;
mod secrets;
mod shell;
mod snapshots;
mod state;
mod terminal;
mod trust;
mod trust_layouts;
mod volumes;
mod workspace;
