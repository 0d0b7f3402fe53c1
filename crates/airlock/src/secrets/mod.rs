//! Secrets of a sandbox: which ones it may use, where their values come from, what stands for them inside.
//!
//! | module | |
//! |---|---|
//! | [`table`] | `[secrets.NAME]` of a file, and `NAME@HOST` of a flag |
//! | [`wanted`] | flags, files and what is known of well-known services, put together. Pure |
//! | [`source`] | a value, from where it is kept |
//! | [`bind`] | rules for the hosts they go to, and contradictions |
//! | [`files`] | credential files that hold placeholders. Pure |
//! | [`clouds`] | those of Google's and Azure's clients. Pure |
//!
//! Values are read here, and go to the keeper over its own connection; they are in no file, no argument and no error text.

mod bind;
mod clouds;
mod files;
pub(crate) mod source;
pub(crate) mod table;
mod wanted;

pub(crate) use files::Kind;

use crate::{
    args::{Network, RunArgs, WorkspaceMode},
    config::{Project, own::Own},
    failure::Failure,
    registries,
    spec::Host,
};
use airlock_protocol::{
    policy::Policy,
    secret::{Secret, Values},
    spec::HomeFile,
};
use std::collections::BTreeMap;
use wanted::Wanted;

/// The secrets of a sandbox that is about to be made.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// What they are.
    pub(crate) secrets: Vec<Secret>,
    /// Their values.
    pub(crate) values: Values,
    /// Variables inside that hold placeholders.
    pub(crate) env: BTreeMap<String, String>,
    /// Credential files inside that hold placeholders.
    pub(crate) home_files: Vec<HomeFile>,
}

/// What flags and files ask for, with values, and the rules that belong to it added to `policy`.
pub(crate) fn settle(
    args: &RunArgs,
    project: Option<&Project>,
    own: &Own,
    host: &Host,
    policy: &mut Policy,
) -> Result<Settled, Failure> {
    let tokens = registries::tokens(host, policy);
    let written = [project, own.run.as_ref()].into_iter().flatten();
    let named: Vec<table::Word> = written.flat_map(|file| file.settings.secret.clone()).collect();
    let asked = wanted::Asked {
        typed: &args.network.secret,
        named: &named,
        project: project.map_or(&[], |project| &project.settings.secrets),
        own: &own.secrets,
    };
    let mut wanted = wanted::put_together(&asked, &|name| host.variables.contains_key(name))?;
    if wanted.is_empty() && tokens.is_empty() {
        return Ok(Settled::default());
    }
    if !wanted.is_empty() && args.network.network == Some(Network::None) {
        let failure = Failure::new("--network none and secrets beside it mean two things").code(2);
        return Err(failure
            .why("a secret is of no use where nothing crosses the wall")
            .fix("leave out one of them"));
    }
    bind::add_rules(&wanted, policy)?;
    let mut settled = Settled::default();
    let workspace = (args.workspace != Some(WorkspaceMode::None)).then_some(host.directory.as_path());
    let source = source::Sources { host, workspace };
    for wish in &mut wanted {
        let value = source.value(&wish.secret)?;
        settled.take(wish, value)?;
    }
    settled.home_files = files::render(&wanted);
    for (name, text) in wanted.iter().flat_map(clouds::variables) {
        settled.env.entry(name.to_owned()).or_insert(text);
    }
    for (path, text) in registries::settings_inside(host, &tokens) {
        files::append_unless_said(&mut settled.home_files, path, &text);
    }
    settled.take_tokens(tokens);
    settled.refuse_what_is_typed(args)?;
    Ok(settled)
}

/// The values of secrets that a sandbox has, read anew.
pub(crate) fn values_anew(secrets: &[Secret], host: &Host) -> Result<Values, Failure> {
    // What lies in the workspace was looked at when the sandbox was made.
    let source = source::Sources { host, workspace: None };
    let read = |secret: &Secret| Ok((secret.name.clone(), source.value(secret)?));
    Ok(Values(secrets.iter().map(read).collect::<Result<_, Failure>>()?))
}

impl Settled {
    fn take(&mut self, wish: &mut Wanted, value: String) -> Result<(), Failure> {
        let secret = &mut wish.secret;
        secret.placeholder = placeholder(&secret.name, &value)?;
        for name in std::iter::once(&secret.name).chain(&wish.also) {
            self.env.entry(name.clone()).or_insert_with(|| secret.placeholder.clone());
        }
        self.values.0.insert(secret.name.clone(), value);
        self.secrets.push(secret.clone());
        Ok(())
    }

    /// Tokens of package clients. One that cannot be a secret stays outside.
    fn take_tokens(&mut self, tokens: Vec<registries::Token>) {
        for token in tokens {
            let Ok(placeholder) = placeholder(&token.secret.name, &token.value) else { continue };
            files::append_unless_said(&mut self.home_files, token.path, &(token.render)(&placeholder));
            self.values.0.insert(token.secret.name.clone(), token.value);
            self.secrets.push(Secret { placeholder, ..token.secret });
        }
    }

    /// A value that a flag shows inside would make a secret of it in vain.
    fn refuse_what_is_typed(&self, args: &RunArgs) -> Result<(), Failure> {
        let shown = |text: &str| self.values.0.iter().find(|(_, value)| text.contains(value.as_str()));
        if let Some((name, _)) = args.command.iter().find_map(|word| shown(word)) {
            return Err(Failure::new(format!("the command holds the value of the secret {name}"))
                .code(2)
                .why("the program inside would see it")
                .fix(format!("let a shell inside read the variable: airlock run --secret {name} -- sh -c '… \"${name}\" …'")));
        }
        Ok(())
    }
}

/// A variable that holds a secret's value may not enter: told by its name.
pub(crate) fn refuse_values(env: &BTreeMap<String, String>, settled: &Settled) -> Result<(), Failure> {
    for (variable, text) in env {
        let Some((name, _)) = settled.values.0.iter().find(|(_, value)| text.contains(value.as_str())) else {
            continue;
        };
        return Err(Failure::new(format!("the variable {variable} holds the value of the secret {name}"))
            .code(2)
            .why("the program inside would see it")
            .fix(format!(
                "leave out --env {variable}: the secret sets the variable {name} to a placeholder"
            )));
    }
    Ok(())
}

fn placeholder(name: &str, value: &str) -> Result<String, Failure> {
    let mut failed = None;
    let random = |bytes: &mut [u8]| {
        if let Err(err) = rustix::rand::getrandom(bytes, rustix::rand::GetRandomFlags::empty()) {
            failed = Some(err);
        }
    };
    let made = airlock_gate::secrets::placeholder(value, random);
    if let Some(err) = failed {
        return Err(Failure::because("this host gives no random numbers", &std::io::Error::from(err)));
    }
    made.map_err(|why| {
        Failure::because(format!("the value of the secret {name} cannot be used"), &why)
            .code(2)
            .fix("look at where it comes from: it is one line of at least 8 characters")
    })
}
