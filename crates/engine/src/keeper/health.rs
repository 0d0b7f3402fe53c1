//! Whether the program does its work: a command is run inside from time to time, and its exit codes tell.

use super::{
    Keeper, Tasks, plan,
    program::{self, Event, Program},
    watched,
};
use crate::store;
use airlock_linux::{fd::set_nonblocking, signal};
use airlock_protocol::{
    spec::{Healthcheck, Stdio, Stream},
    state::{Checked, Health, HealthStatus, Status},
};
use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    rc::Rc,
    time::Duration,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::{Instant, sleep, timeout, timeout_at},
};

/// How much of what a check writes is kept.
const MOST_OUTPUT: usize = 4096;
/// How long a check that was killed may take to be gone.
const LAST: Duration = Duration::from_secs(5);

/// Asks for as long as the sandbox lives, anew with every start of its program.
pub(super) async fn watch(keeper: Rc<Keeper>, check: Healthcheck) {
    let mut runs = keeper.runs.subscribe();
    if runs.wait_for(|runs| *runs > 0).await.is_err() {
        return;
    }
    loop {
        let run = *runs.borrow_and_update();
        tell(&keeper, Health { status: HealthStatus::Starting, failures: 0, last: None });
        tokio::select! {
            biased;
            changed = runs.wait_for(|now| *now != run) => if changed.is_err() { return },
            () = ask(&keeper, &check) => return,
        }
    }
}

/// Asks again and again, while one start of the program lasts.
async fn ask(keeper: &Keeper, check: &Healthcheck) {
    let began = Instant::now();
    let period = Duration::from_millis(check.start_period_ms);
    let mut health = Health { status: HealthStatus::Starting, failures: 0, last: None };
    loop {
        let is_starting = health.status == HealthStatus::Starting && began.elapsed() < period;
        let wait = if is_starting { check.start_interval_ms } else { check.interval_ms };
        sleep(Duration::from_millis(wait)).await;
        if keeper.state.borrow().status != Status::Running {
            continue;
        }
        let checked = probe(keeper, check).await;
        let counts = health.status != HealthStatus::Starting || began.elapsed() >= period;
        health = judge(&health, checked, counts.then_some(check.retries));
        tell(keeper, health.clone());
    }
}

/// What follows from one more check. Without `retries` failures do not count yet.
fn judge(before: &Health, checked: Checked, retries: Option<u32>) -> Health {
    let is_well = checked.code == Some(0);
    let failures = match (is_well, retries) {
        (true, _) => 0,
        (false, None) => before.failures,
        (false, Some(_)) => before.failures.saturating_add(1),
    };
    let status = match retries {
        _ if is_well => HealthStatus::Healthy,
        Some(most) if failures >= most => HealthStatus::Unhealthy,
        _ => before.status,
    };
    Health { status, failures, last: Some(checked) }
}

fn tell(keeper: &Keeper, health: Health) {
    keeper.update(|state| state.health = Some(health));
}

/// Runs the command once.
async fn probe(keeper: &Keeper, check: &Healthcheck) -> Checked {
    let mut tasks = Tasks::new();
    let until = Instant::now() + Duration::from_millis(check.timeout_ms);
    let told = |code: Option<u8>, output: String| Checked { at: store::now(), code, output };
    let (mut program, pipe) = match start(keeper, check, &mut tasks).await {
        Ok(started) => started,
        Err(why) => return told(None, why),
    };
    let mut output = Vec::new();
    let end = tokio::select! {
        biased;
        ended = timeout_at(until, ended(&mut program)) => ended,
        () = hear(&pipe, &mut output) => timeout_at(until, ended(&mut program)).await,
    };
    let code = match end {
        Ok(code) => code,
        Err(_) => {
            let _ = keeper.signal(program.process, signal::KILL).await;
            let _ = timeout(LAST, ended(&mut program)).await;
            return told(None, format!("it did not end within {} ms", check.timeout_ms));
        }
    };
    // What it wrote last may still be in the pipe; what it left behind may keep the pipe open.
    let _ = timeout(Duration::from_millis(10), hear(&pipe, &mut output)).await;
    told(code, String::from_utf8_lossy(&output).into_owned())
}

async fn start(
    keeper: &Keeper,
    check: &Healthcheck,
    tasks: &mut Tasks,
) -> Result<(Program, AsyncFd<OwnedFd>), String> {
    let pipe = || -> io::Result<(AsyncFd<OwnedFd>, OwnedFd, OwnedFd)> {
        let (read, write) = io::pipe()?;
        let (read, write) = (OwnedFd::from(read), OwnedFd::from(write));
        set_nonblocking(read.as_fd())?;
        Ok((watched(read, Interest::READABLE)?, write.try_clone()?, write))
    };
    let (read, stdout, stderr) = pipe().map_err(|err| err.to_string())?;
    let wanted = program::Wanted {
        command: check.command.clone(),
        env: keeper.plan.env.clone(),
        workdir: plan::workdir(&keeper.spec.workdir).map_err(|refusal| refusal.what)?,
        user: keeper.plan.user.clone(),
        stdio: Stdio { stdin: Stream::Null, ..Stdio::all(Stream::Passed) },
    };
    let program = keeper.start(wanted, vec![stdout, stderr], tasks).await.map_err(|refusal| refusal.what)?;
    Ok((program, read))
}

async fn ended(program: &mut Program) -> Option<u8> {
    loop {
        if let Event::Ended(end) = program.events.recv().await? {
            return Some(end.shell_code());
        }
    }
}

/// Keeps the beginning and lets the rest go by, until the pipe closes.
async fn hear(pipe: &AsyncFd<OwnedFd>, output: &mut Vec<u8>) {
    let mut bytes = [0u8; 4096];
    loop {
        let Ok(mut ready) = pipe.readable().await else { return };
        match ready.try_io(|pipe| Ok(rustix::io::read(pipe.get_ref(), &mut bytes)?)) {
            Ok(Ok(0) | Err(_)) => return,
            Ok(Ok(count)) => {
                let room = MOST_OUTPUT.saturating_sub(output.len()).min(count);
                output.extend_from_slice(bytes.get(..room).unwrap_or_default());
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(codes: &[Option<u8>], retries: Option<u32>) -> (HealthStatus, u32) {
        let first = Health { status: HealthStatus::Starting, failures: 0, last: None };
        let health = codes.iter().fold(first, |health, code| {
            let checked = Checked { at: String::new(), code: *code, output: String::new() };
            judge(&health, checked, retries)
        });
        (health.status, health.failures)
    }

    #[test]
    fn so_many_failures_in_a_row_are_unhealthy_and_one_success_is_enough() {
        use HealthStatus::{Healthy, Starting, Unhealthy};
        assert_eq!(after(&[Some(0)], Some(3)), (Healthy, 0));
        assert_eq!(after(&[Some(1), None], Some(3)), (Starting, 2));
        assert_eq!(after(&[Some(0), Some(1), None], Some(3)), (Healthy, 2));
        assert_eq!(after(&[Some(1), None, Some(7)], Some(3)), (Unhealthy, 3));
        assert_eq!(after(&[Some(1), None, Some(7), Some(0)], Some(3)), (Healthy, 0));
        assert_eq!(after(&[Some(1), None, Some(7)], None), (Starting, 0));
    }
}
