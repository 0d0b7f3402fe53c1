//! Files of `ADD` that are elsewhere: fetched if what may be reached says so, each redirect too.

use super::job::Job;
use crate::{config, failure::Failure, home, policy, spec::Host};
use airlock_gate::{host::Destination, judge::Judge};
use airlock_images::build::instruction::Instruction;
use airlock_net::errand::{Ask, Errands, Site};
use airlock_protocol::policy::{Policy, Verdict};

/// Largest file.
const MOST: usize = 512 << 20;
/// Most redirects.
const REDIRECTS: usize = 8;

/// What is at a URL.
pub(super) fn fetch(job: &Job, instruction: &Instruction, url: &str) -> Result<Vec<u8>, Failure> {
    let reach = Reach::of(job)?;
    let own = config::own(&home::path()?)?;
    let fail = |why: String| job.fail(instruction, format!("{url} cannot be fetched: {why}"));
    let errands = Errands::new(&own.egress).map_err(|err| fail(err.to_string()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut at = url.to_owned();
    for _ in 0..REDIRECTS {
        let (site, path) = Site::of_url(&at).map_err(|err| fail(err.to_string()))?;
        reach.check(&site.authority(), site.port, &fail)?;
        match runtime.block_on(ask(&errands, &site, path)).map_err(fail)? {
            Came::File(bytes) => return Ok(bytes),
            Came::Elsewhere(to) if to.starts_with('/') => {
                at = format!("{}://{site}{to}", site.scheme.as_str())
            }
            Came::Elsewhere(to) => at = to,
        }
    }
    Err(fail(format!("it leads elsewhere more than {REDIRECTS} times")))
}

/// What a build may reach.
pub(super) struct Reach(Judge);

impl Reach {
    pub(super) fn of(job: &Job) -> Result<Reach, Failure> {
        let rules = policy::from_words(Verdict::Allow, &job.allow, "--allow", &Host::current()?)?;
        Judge::compile(&Policy { rules, ..Policy::default() }).map(Reach).map_err(policy::failure)
    }

    /// Refuses a host that nothing allows, in the words of `fail`.
    pub(super) fn check(
        &self,
        authority: &str,
        port: u16,
        fail: &dyn Fn(String) -> Failure,
    ) -> Result<(), Failure> {
        let destination: Destination = authority.parse().map_err(|_| fail("no such host".to_owned()))?;
        if self.0.connect(&destination.target, port).verdict == Some(Verdict::Allow) {
            return Ok(());
        }
        let failure = fail(format!("nothing allows {authority}"));
        Err(failure.code(4).fix(format!("airlock build --allow {authority}")))
    }
}

enum Came {
    File(Vec<u8>),
    Elsewhere(String),
}

async fn ask(errands: &Errands, site: &Site, path: String) -> Result<Came, String> {
    let mut answer = errands.ask(site, &Ask::get(path)).await.map_err(|err| err.to_string())?;
    let status = answer.status.as_u16();
    if (300..400).contains(&status)
        && let Some(to) = answer.headers.get("location").and_then(|to| to.to_str().ok())
    {
        return Ok(Came::Elsewhere(to.to_owned()));
    }
    if status != 200 {
        return Err(format!("{site} answered {status}"));
    }
    let mut whole = Vec::new();
    while let Some(piece) = answer.piece().await.map_err(|err| err.to_string())? {
        if whole.len().saturating_add(piece.len()) > MOST {
            return Err(format!("it has more than {MOST} bytes"));
        }
        whole.extend_from_slice(&piece);
    }
    Ok(Came::File(whole))
}
