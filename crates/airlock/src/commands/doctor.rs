//! `airlock doctor`: what this machine can do, and how to fix what it cannot.

use super::print_json;
use crate::{
    args::DoctorArgs,
    clean::clean_line,
    failure::{Failure, Outcome},
    home, place,
};
use airlock_engine::doctor::{self, Facts, Finding, Fix, Report, Status, Step, facts::Asker, fix::Power};
use std::{
    fs,
    io::{self, IsTerminal, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    process::Command,
};

/// This host cannot run sandboxes.
const CANNOT: u8 = 5;
const WRONG_USAGE: u8 = 2;

pub(crate) fn doctor(args: &DoctorArgs) -> Outcome {
    let asker = asker()?;
    match &args.fix {
        Some(name) => fix(name, &asker, if args.yes { Consent::Given } else { Consent::Asked }),
        None => tell(&examine(&asker), args),
    }
}

/// What this host can do, and what machines have here.
fn examine(asker: &Asker) -> Report {
    let mut report = doctor::examine(&Facts::gather(asker));
    place::examine(&asker.home, &mut report);
    report
}

fn asker() -> Result<Asker, Failure> {
    let binary = std::env::current_exe()
        .map_err(|err| Failure::because("could not find this program's own file", &err))?;
    let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR").map(Into::into);
    Ok(Asker { home: home::path()?, binary, runtime_dir })
}

fn tell(report: &Report, args: &DoctorArgs) -> Outcome {
    match args.json {
        true => tell_json(report)?,
        false => io::stdout().write_all(text(report).as_bytes())?,
    }
    Ok(if report.stoppers().is_empty() { 0 } else { CANNOT })
}

fn tell_json(report: &Report) -> Result<(), Failure> {
    for finding in &report.findings {
        print_json(&serde_json::json!({
            "name": finding.name,
            "status": finding.status.word(),
            "says": finding.says,
            "fix": finding.remedy(),
            "fixable": steps(finding).is_some(),
            "stops_run": finding.stops_run,
        }))?;
    }
    let stoppers = report.stoppers();
    print_json(&serde_json::json!({
        "name": "summary",
        "status": if stoppers.is_empty() { "ok" } else { "missing" },
        "says": report.summary(),
        "stopped_by": stoppers,
    }))
}

/// One line for each finding, its fix below it, the verdict last.
fn text(report: &Report) -> String {
    let mut lines = Vec::new();
    for finding in &report.findings {
        lines.push(format!(
            "{:<8}  {:<14}  {}",
            finding.status.word(),
            finding.name,
            clean_line(&finding.says)
        ));
        if let Some(remedy) = finding.remedy() {
            lines.push(format!("{:<26}fix:  {}", "", clean_line(&remedy)));
        }
    }
    lines.push(report.summary());
    lines.join("\n") + "\n"
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Consent {
    Given,
    Asked,
}

fn fix(name: &str, asker: &Asker, consent: Consent) -> Outcome {
    let finding = find(name, asker)?;
    if finding.status == Status::Ok {
        writeln!(io::stdout(), "{name} is ok: {}", clean_line(&finding.says))?;
        return Ok(0);
    }
    let Some(fix) = steps(&finding) else {
        let failure =
            Failure::new(format!("no command of airlock fixes {name}")).code(1).why(finding.says.clone());
        return Err(finding.remedy().into_iter().fold(failure, Failure::fix));
    };
    io::stdout().write_all(shown(&finding, fix).as_bytes())?;
    if fix.power == Power::Root && !rustix::process::geteuid().is_root() {
        return Err(Failure::new("this fix needs root")
            .code(1)
            .fix(format!("sudo airlock doctor --fix {name}")));
    }
    if consent == Consent::Asked && !agrees(name)? {
        return Ok(1);
    }
    for step in &fix.steps {
        apply(step)?;
    }
    writeln!(io::stdout(), "done; `airlock doctor` tells whether it helped")?;
    Ok(0)
}

/// Under sudo it is about the person who typed it. What they lack is read from files: nothing that an ordinary user's
/// process says decides what root does.
fn find(name: &str, asker: &Asker) -> Result<Finding, Failure> {
    let mut findings = Vec::new();
    if let Some(uid) = behind_sudo() {
        findings.extend(doctor::examine(&Facts::read(asker, uid)).findings);
    }
    findings.extend(examine(asker).findings);
    findings.retain(|finding| finding.name == name);
    let fixable = findings.iter().position(|finding| steps(finding).is_some()).unwrap_or(0);
    findings.into_iter().nth(fixable).ok_or_else(|| {
        Failure::new(format!("doctor knows no {name:?}"))
            .code(WRONG_USAGE)
            .fix("`airlock doctor` lists the names")
    })
}

fn behind_sudo() -> Option<u32> {
    let uid = std::env::var("SUDO_UID").ok()?.parse().ok()?;
    (uid != 0 && rustix::process::geteuid().is_root()).then_some(uid)
}

fn steps(finding: &Finding) -> Option<&Fix> {
    finding.fix.as_ref().filter(|fix| !fix.steps.is_empty())
}

/// What will be done, so that a person can say no.
fn shown(finding: &Finding, fix: &Fix) -> String {
    let mut text = format!("{}\nthis will:\n", clean_line(&finding.says));
    for step in &fix.steps {
        match step {
            Step::Run(_) => {
                text.push_str(&format!("  run    {}\n", clean_line(&step.line("").unwrap_or_default())))
            }
            Step::Write { path, text: content } => {
                text.push_str(&format!("  write  {}\n", clean_line(&path.display().to_string())));
                let lines = content.lines().map(|line| format!("         | {}\n", clean_line(line)));
                text.extend(lines);
            }
        }
    }
    text
}

fn agrees(name: &str) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::new("nothing was changed: nobody is there to say yes")
            .code(WRONG_USAGE)
            .why("standard input is not a terminal")
            .fix(format!("airlock doctor --fix {name} --yes")));
    }
    let mut stderr = io::stderr();
    write!(stderr, "do it? [y/N] ")?;
    stderr.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|err| Failure::because("could not read the answer", &err))?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

fn apply(step: &Step) -> Result<(), Failure> {
    match step {
        Step::Run(words) => run(words),
        Step::Write { path, text } => replace(path, text)
            .map_err(|err| Failure::because(format!("could not write {}", path.display()), &err).code(1)),
    }
}

fn run(words: &[String]) -> Result<(), Failure> {
    let Some((program, arguments)) = words.split_first() else { return Ok(()) };
    let failed = Failure::new(format!("could not {}", words.join(" "))).code(1);
    match Command::new(program).args(arguments).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(failed.why(format!("{program} ended with {status}"))),
        Err(err) => Err(failed.why(format!("{program}: {err}"))),
    }
}

/// Whole or not at all.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(&temporary)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    let placed = written.and_then(|()| fs::rename(&temporary, path));
    if placed.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let finding = |name, status, says: &str, fix, stops_run| Finding {
            name,
            status,
            says: says.into(),
            fix,
            stops_run,
        };
        Report {
            findings: vec![
                finding("kernel", Status::Ok, "Linux 6.18.0", None, false),
                finding(
                    "userns",
                    Status::Missing,
                    "user namespaces are switched off on this host: user.max_user_namespaces is 0",
                    Some(Fix::root(vec![Step::run(["sysctl", "-w", "user.max_user_namespaces=15000"])])),
                    true,
                ),
                finding(
                    "disk",
                    Status::Degraded,
                    "a plain --disk needs host root",
                    Some(Fix::advice("--disk 1G,tmpfs")),
                    false,
                ),
            ],
        }
    }

    #[test]
    fn the_report_reads_like_this() {
        let expected = "\
ok        kernel          Linux 6.18.0
missing   userns          user namespaces are switched off on this host: user.max_user_namespaces is 0
                          fix:  sudo sysctl -w user.max_user_namespaces=15000
degraded  disk            a plain --disk needs host root
                          fix:  --disk 1G,tmpfs
airlock cannot run here: userns
";
        assert_eq!(text(&report()), expected);
    }

    #[test]
    fn a_fix_is_shown_whole_before_it_is_applied() {
        let fix = Fix::root(vec![
            Step::Write { path: "/etc/apparmor.d/airlock".into(), text: "profile airlock {\n}\n".into() },
            Step::run(["apparmor_parser", "-r", "/etc/apparmor.d/airlock"]),
        ]);
        let finding = Finding { fix: Some(fix.clone()), ..report().findings.remove(1) };

        let expected = "\
user namespaces are switched off on this host: user.max_user_namespaces is 0
this will:
  write  /etc/apparmor.d/airlock
         | profile airlock {
         | }
  run    apparmor_parser -r /etc/apparmor.d/airlock
";
        assert_eq!(shown(&finding, &fix), expected);
    }

    #[test]
    fn a_file_is_replaced_and_nothing_is_left_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("conf");
        fs::write(&path, "old").unwrap();

        replace(&path, "new\n").unwrap();

        assert_eq!(fs::read_to_string(&path).unwrap(), "new\n");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
