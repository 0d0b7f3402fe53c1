//! The lists that always count, as data. What git obeys below `.git` stands in [`super::git`].
//!
//! The line is drawn at what the host runs or obeys by itself: on entering the directory, opening it in an editor, or in
//! any git command. What runs only when a person asks for it (a Makefile, a build script) is code like the rest, and read
//! in the diff.

/// Held back by `apply`, read-only in a workspace that is written directly.
pub(super) const PROTECTED: [&str; 65] = [
    // Submodules: an address or an update command that git fetches from and runs.
    ".gitmodules",
    ".gitconfig",
    // Programs of hooks that an installed hook of the host calls.
    ".husky",
    ".githooks",
    ".pre-commit-config.yaml",
    ".pre-commit-config.yml",
    "lefthook.yml",
    "lefthook.yaml",
    ".lefthook.yml",
    ".lefthook.yaml",
    ".lefthook",
    // Editors: tasks that run when a folder is opened, paths of language servers and debuggers.
    ".vscode",
    "*.code-workspace",
    ".idea",
    ".fleet",
    ".zed",
    ".devcontainer",
    ".devcontainer.json",
    "*.sublime-project",
    ".vimrc",
    ".exrc",
    ".nvimrc",
    ".nvim.lua",
    ".lvimrc",
    ".dir-locals.el",
    // Shells, and what they load on entering a directory.
    ".envrc",
    ".mise.toml",
    "mise.toml",
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".bash_aliases",
    ".profile",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".zlogin",
    ".zlogout",
    ".kshrc",
    ".cshrc",
    ".tcshrc",
    ".login",
    "**/.config/fish",
    ".inputrc",
    // Agents and their tool servers: commands that an agent on the host would start.
    ".mcp.json",
    "mcp.json",
    "**/.claude/settings*.json",
    "**/.claude/hooks",
    "**/.claude/commands",
    "**/.claude/agents",
    "**/.claude/skills",
    "**/.claude/plugins",
    ".codex",
    ".cursor",
    ".windsurf",
    ".gemini",
    ".goose",
    ".opencode",
    "opencode.json",
    "opencode.jsonc",
    ".continue",
    ".aider.conf.yml",
    ".amazonq",
    ".kiro",
];

/// Protected besides, where that is asked for: what a CI system runs with its own secrets.
pub(super) const CI: [&str; 17] = [
    "**/.github/workflows",
    "**/.github/actions",
    ".gitlab-ci.yml",
    "**/.gitea/workflows",
    "**/.forgejo/workflows",
    ".circleci",
    ".travis.yml",
    ".drone.yml",
    ".buildkite",
    ".woodpecker.yml",
    ".woodpecker",
    "Jenkinsfile",
    "azure-pipelines.yml",
    "bitbucket-pipelines.yml",
    "cloudbuild.yaml",
    "appveyor.yml",
    ".cirrus.yml",
];

/// Not readable inside: files that hold passwords, tokens and private keys by custom.
pub(super) const HIDDEN: [&str; 21] = [
    ".env",
    ".env.*",
    ".dev.vars",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.jks",
    "*.keystore",
    "*.kdbx",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
    ".netrc",
    ".pgpass",
    ".pypirc",
    ".git-credentials",
    "**/.aws/credentials",
    "**/.docker/config.json",
    "**/.kube/config",
];

/// Never hidden: the same names with nothing in them but an example.
pub(super) const NEVER_HIDDEN: [&str; 5] =
    [".env.example", ".env.sample", ".env.template", ".env.dist", ".env.defaults"];
