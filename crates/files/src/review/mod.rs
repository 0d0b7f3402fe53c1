//! What a sandbox changed in its copy of the workspace.
