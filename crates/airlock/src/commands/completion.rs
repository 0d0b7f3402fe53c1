//! `airlock completion`: a script for a shell. Verbs and flags are in the script, names of sandboxes are asked for.

use crate::{args::Cli, failure::Outcome, home, registries, spec::Host};
use clap::CommandFactory;
use clap_complete::Shell;
use std::io::Write;

/// Verbs that take sandboxes.
const TAKERS: [&str; 25] = [
    "shell", "diff", "apply", "undo", "discard", "exec", "get", "logs", "kill", "stop", "start", "restart",
    "wait", "pause", "resume", "rm", "allow", "deny", "ledger", "snapshot", "fork", "export", "mount",
    "unmount", "commit",
];
/// Verbs of verbs that do.
const NESTED: [(&str, &str); 8] = [
    ("policy", "show"),
    ("policy", "set"),
    ("policy", "explain"),
    ("policy", "diff"),
    ("secret", "ls"),
    ("secret", "set"),
    ("ledger", "verify"),
    ("ledger", "export"),
];
/// Flags that take groups.
const TAKE_GROUPS: [&str; 3] = ["--allow", "--deny", "--ask"];
/// The flag that takes an image.
const TAKE_IMAGE: &str = "--image";
/// Verbs whose further words are no sandboxes.
const TAKE_ONE: &str = "commit|exec|shell|diff|apply|discard|allow|deny|mount|unmount";

pub(crate) fn completion(shell: Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "airlock", &mut script);
    let script = String::from_utf8_lossy(&script);
    let script = match shell {
        Shell::Bash => format!("{script}{}", bash()),
        Shell::Zsh => zsh(&script),
        Shell::Fish => format!("{script}{}", fish()),
        _ => script.into_owned(),
    };
    std::io::stdout().write_all(script.as_bytes())?;
    Ok(0)
}

/// Names, one a line. A shell in the middle of a line wants no errors.
pub(crate) fn sandboxes() -> Outcome {
    let entries = home::store().and_then(|store| Ok(store.list()?)).unwrap_or_default();
    let mut stdout = std::io::stdout().lock();
    for entry in entries {
        writeln!(stdout, "{}", entry.state.name)?;
    }
    Ok(0)
}

/// Names of groups of hosts, one a line.
pub(crate) fn groups() -> Outcome {
    let Ok(host) = Host::current() else { return Ok(0) };
    let mut stdout = std::io::stdout().lock();
    for group in airlock_gate::groups::list(&registries::discover_all(&host)) {
        writeln!(stdout, "{}", group.name)?;
    }
    Ok(0)
}

/// Verbs of `images` that take images which are here.
fn image_takers() -> Vec<String> {
    let command = Cli::command();
    let takes = |verb: &&clap::Command| {
        let mut names = verb.get_positionals().filter_map(clap::Arg::get_value_names).flatten();
        names.any(|name| *name == "IMAGE")
    };
    let images = command.find_subcommand("images").into_iter().flat_map(clap::Command::get_subcommands);
    images.filter(takes).map(|verb| verb.get_name().to_owned()).collect()
}

/// Wraps the generated function: after a verb that takes sandboxes, names are offered beside the flags.
fn bash() -> String {
    let takers = TAKERS.map(|verb| format!("{verb}\\ *")).join("|");
    let nested = NESTED.map(|(verb, nested)| format!("{verb}\\ {nested}")).join("|");
    let take_groups = TAKE_GROUPS.join("|");
    let images: Vec<String> = image_takers().iter().map(|verb| format!("images\\ {verb}")).collect();
    let images = images.join("|");
    format!(
        r#"
_airlock_with_names() {{
    _airlock "$@"
    case "${{COMP_WORDS[COMP_CWORD-1]}}" in
        {take_groups})
            COMPREPLY=($(compgen -W "$(airlock complete-groups 2>/dev/null)" -- "${{COMP_WORDS[COMP_CWORD]}}"))
            return
            ;;
        {TAKE_IMAGE})
            COMPREPLY=($(compgen -W "$(airlock complete-images 2>/dev/null)" -- "${{COMP_WORDS[COMP_CWORD]}}"))
            return
            ;;
    esac
    case "${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}" in
        {images})
            local here="${{COMP_WORDS[COMP_CWORD]}}"
            [[ "$here" == -* ]] && return
            COMPREPLY=(${{COMPREPLY[@]}} $(compgen -W "$(airlock complete-images 2>/dev/null)" -- "$here"))
            ;;
        {nested}|{takers})
            local here="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
            [[ "$here" == -* ]] && return
            [[ "${{COMP_WORDS[1]}}" =~ ^({TAKE_ONE})$ && "$before" != "${{COMP_WORDS[1]}}" && "$before" != -* ]] && return
            COMPREPLY=(${{COMPREPLY[@]}} $(compgen -W "$(airlock complete-sandboxes 2>/dev/null)" -- "$here"))
            ;;
    esac
}}
complete -F _airlock_with_names -o nosort -o bashdefault -o default airlock
"#
    )
}

/// Arguments of the generated script that are sandboxes get an action that lists them.
fn zsh(script: &str) -> String {
    let is_taker = |line: &str| {
        line.contains("sandbox -- Which sandbox")
            || line.contains("command -- Which sandbox")
            || line.contains("source -- Which sandbox or snapshot")
            || line.contains("sandboxes -- Which sandboxes")
    };
    let takes_either = |line: &str| {
        line.contains("from -- A sandbox or a file") || line.contains("to -- What to compare it with")
    };
    let takes_groups =
        |line: &str| TAKE_GROUPS.iter().any(|flag| line.trim_start().starts_with(&format!("'*{flag}=[")));
    let takes_images = |line: &str| {
        line.contains("image -- Which image")
            || line.contains("images -- Which images")
            || line.trim_start().starts_with(&format!("'{TAKE_IMAGE}=["))
    };
    let listed: String = script
        .split_inclusive('\n')
        .map(|line| {
            let action = match line {
                line if is_taker(line) => ":_airlock_names'",
                line if takes_either(line) => ":{_airlock_names; _files}'",
                line if takes_groups(line) => ":_airlock_groups'",
                line if takes_images(line) => ":_airlock_images'",
                _ => ":_default'",
            };
            line.replace(":_default'", action)
        })
        .collect();
    let names = "_airlock_names() {\n    local -a names\n    names=(${(f)\"$(airlock complete-sandboxes 2>/dev/null)\"})\n    \
                 _describe sandbox names\n}\n\n_airlock_groups() {\n    local -a groups\n    \
                 groups=(${(f)\"$(airlock complete-groups 2>/dev/null)\"})\n    _describe group groups\n}\n\n_airlock_images() {\n    local -a images\n    \
                 images=(${(f)\"$(airlock complete-images 2>/dev/null)\"})\n    compadd -a images\n}\n\n";
    listed.replacen("_airlock() {\n", &format!("{names}_airlock() {{\n"), 1)
}

fn fish() -> String {
    let line = |verb: &str| {
        format!(
            "complete -c airlock -n \"__fish_airlock_using_subcommand {verb}\" -f -a \"(airlock complete-sandboxes 2>/dev/null)\"\n"
        )
    };
    let nested =
        |(verb, nested): &(&str, &str)| line(&format!("{verb}; and __fish_seen_subcommand_from {nested}"));
    let groups = |flag: &&str| {
        let flag = flag.trim_start_matches('-');
        let list = "(airlock complete-groups 2>/dev/null)";
        format!(
            "complete -c airlock -n \"__fish_seen_subcommand_from run shell learn\" -l {flag} -x -a \"{list}\"\n"
        )
    };
    let list = "(airlock complete-images 2>/dev/null)";
    let image = |verb: &String| {
        let seen = format!("__fish_airlock_using_subcommand images; and __fish_seen_subcommand_from {verb}");
        format!("complete -c airlock -n \"{seen}\" -f -a \"{list}\"\n")
    };
    let flag = TAKE_IMAGE.trim_start_matches('-');
    let run = format!(
        "complete -c airlock -n \"__fish_seen_subcommand_from run shell learn\" -l {flag} -x -a \"{list}\"\n"
    );
    let takers = TAKERS.iter().map(|verb| line(verb)).chain(NESTED.iter().map(nested));
    let others = TAKE_GROUPS.iter().map(groups).chain([run]);
    takers.chain(others).chain(image_takers().iter().map(image)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_that_takes_a_sandbox_completes_its_name_and_no_other() {
        let command = Cli::command();
        let takes = |verb: &&clap::Command| {
            let first = verb.get_positionals().next();
            first.is_some_and(|first| {
                let name = first.get_value_names().and_then(|names| names.first());
                first.get_id().as_str().starts_with("sandbox")
                    || name.is_some_and(|name| *name == "SANDBOX" || name.starts_with("SANDBOX|"))
            })
        };
        let mut takers: Vec<_> =
            command.get_subcommands().filter(takes).map(clap::Command::get_name).collect();
        let mut expected = TAKERS;
        takers.sort_unstable();
        expected.sort_unstable();
        assert_eq!(takers, expected);

        let nested: Vec<_> = command
            .get_subcommands()
            .flat_map(|verb| {
                verb.get_subcommands().filter(takes).map(|nested| (verb.get_name(), nested.get_name()))
            })
            .collect();
        assert_eq!(nested, NESTED);
    }

    #[test]
    fn every_verb_that_takes_an_image_completes_its_name() {
        let takers = image_takers();
        for verb in ["inspect", "history", "tag", "rm", "save"] {
            assert!(takers.iter().any(|taker| taker == verb), "{verb}");
            assert!(bash().contains(&format!("images\\ {verb}")), "{verb}");
            assert!(fish().contains(&format!("images; and __fish_seen_subcommand_from {verb}")), "{verb}");
        }
        let mut script = Vec::new();
        clap_complete::generate(Shell::Zsh, &mut Cli::command(), "airlock", &mut script);
        let script = zsh(&String::from_utf8(script).unwrap());
        assert!(script.matches(":_airlock_images'").count() >= takers.len(), "{script}");
    }

    #[test]
    fn the_zsh_script_asks_for_names_of_every_taker() {
        let mut script = Vec::new();
        clap_complete::generate(Shell::Zsh, &mut Cli::command(), "airlock", &mut script);
        let script = zsh(&String::from_utf8(script).unwrap());
        assert_eq!(script.matches(":_airlock_names'").count(), TAKERS.len() + NESTED.len() - 1);
        assert_eq!(script.matches(":{_airlock_names; _files}'").count(), 2);
        // Those of run, shell and learn, and `build --allow`.
        assert_eq!(script.matches(":_airlock_groups'").count(), 3 * TAKE_GROUPS.len() + 1);
        assert_eq!(script.matches("_airlock_names() {").count(), 1);
    }
}
