//! How an image is run: its configuration below what was typed, by docker's rules. Pure; an image is hostile, and what makes no
//! sense in it is refused.

use crate::failure::Failure;
use airlock_images::manifest::{Healthcheck as Asked, RunConfig};
use airlock_linux::signal;
use airlock_protocol::spec::Healthcheck;
use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

/// Where programs of an image are looked for that does not say.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Most volumes of one image: each is a mount at every start.
const MOST_VOLUMES: usize = 64;
const INTERVAL_MS: u64 = 30_000;
const START_INTERVAL_MS: u64 = 5_000;
const RETRIES: u32 = 3;
/// No image wants its health asked for more often.
const LEAST_MS: u64 = 1;

/// The program and its arguments: the entrypoint, then what was typed or else the image's own.
pub(crate) fn command(image: &RunConfig, entrypoint: Option<&str>, typed: &[String]) -> Vec<String> {
    let (mut command, own) = match entrypoint {
        None => (image.entrypoint.clone().unwrap_or_default(), image.cmd.clone().unwrap_or_default()),
        // Arguments of the image belong to its own entrypoint.
        Some("") => (Vec::new(), Vec::new()),
        Some(program) => (vec![program.to_owned()], Vec::new()),
    };
    command.extend(if typed.is_empty() { own } else { typed.to_vec() });
    command
}

/// The variables of an image. A line without a name is nobody's.
pub(crate) fn env(image: &RunConfig) -> BTreeMap<String, String> {
    let pairs = image.env.iter().filter_map(|line| line.split_once('='));
    let named = pairs.filter(|(name, _)| !name.is_empty() && !name.contains('\0'));
    let mut env: BTreeMap<String, String> =
        named.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    env.entry("PATH".to_owned()).or_insert_with(|| DEFAULT_PATH.to_owned());
    env
}

/// Where the image's own program starts.
pub(crate) fn workdir(image: &RunConfig) -> Result<PathBuf, Failure> {
    if image.working_dir.is_empty() {
        return Ok(PathBuf::from("/"));
    }
    plain(&image.working_dir).ok_or_else(|| bad("its working directory", &image.working_dir))
}

/// Directories that are no part of the root's changes.
pub(crate) fn volumes(image: &RunConfig) -> Result<Vec<PathBuf>, Failure> {
    if image.volumes.len() > MOST_VOLUMES {
        let words = format!("this image has more than {MOST_VOLUMES} volumes");
        return Err(Failure::new(words));
    }
    let path = |text: &String| plain(text).ok_or_else(|| bad("a volume of it", text));
    image.volumes.keys().map(path).collect()
}

/// What asks its program to end.
pub(crate) fn stop_signal(image: &RunConfig) -> Result<Option<i32>, Failure> {
    match image.stop_signal.as_deref() {
        None | Some("") => Ok(None),
        Some(text) => signal_of(text).map(Some).ok_or_else(|| bad("its stop signal", text)),
    }
}

/// How its health is asked.
pub(crate) fn health(image: &RunConfig) -> Option<Healthcheck> {
    let asked = image.healthcheck.as_ref()?;
    let command = test(asked, image.shell.as_deref())?;
    let millis = |nanos: i64, otherwise: u64| match u64::try_from(nanos / 1_000_000) {
        Ok(0) if nanos <= 0 => otherwise,
        Ok(millis) => millis.max(LEAST_MS),
        Err(_) => otherwise,
    };
    Some(Healthcheck {
        command,
        interval_ms: millis(asked.interval, INTERVAL_MS),
        timeout_ms: millis(asked.timeout, INTERVAL_MS),
        start_period_ms: millis(asked.start_period, 0),
        start_interval_ms: millis(asked.start_interval, START_INTERVAL_MS),
        retries: u32::try_from(asked.retries).ok().filter(|retries| *retries > 0).unwrap_or(RETRIES),
    })
}

fn test(asked: &Asked, shell: Option<&[String]>) -> Option<Vec<String>> {
    match asked.test.as_slice() {
        [how, rest @ ..] if how == "CMD" && !rest.is_empty() => Some(rest.to_vec()),
        [how, line] if how == "CMD-SHELL" => {
            let usual = ["/bin/sh".to_owned(), "-c".to_owned()];
            let mut command = shell.filter(|shell| !shell.is_empty()).unwrap_or(&usual).to_vec();
            command.push(line.clone());
            Some(command)
        }
        // NONE, or nothing that docker knows.
        _ => None,
    }
}

/// `TERM`, `15`, and what counts from the first or last signal of applications.
fn signal_of(text: &str) -> Option<i32> {
    let upper = text.to_ascii_uppercase();
    let short = upper.strip_prefix("SIG").unwrap_or(&upper);
    let counted = |from: &str, sign: char| {
        let rest = short.strip_prefix(from)?;
        if rest.is_empty() {
            return Some(0);
        }
        rest.strip_prefix(sign)?.parse::<i32>().ok().filter(|number| (0..=30).contains(number))
    };
    let real =
        counted("RTMIN", '+').map(|more| 34 + more).or_else(|| counted("RTMAX", '-').map(|less| 64 - less));
    real.or_else(|| signal::parse(text))
}

fn plain(text: &str) -> Option<PathBuf> {
    let path = Path::new(text);
    let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    (path.is_absolute() && !text.contains('\0') && path.components().all(is_plain))
        .then(|| path.components().collect())
}

fn bad(what: &str, text: &str) -> Failure {
    let shown: String = text.chars().take(100).collect();
    Failure::new("this image cannot be run").why(format!("{what} is {shown:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn image(entrypoint: Option<&str>, cmd: Option<&str>) -> RunConfig {
        RunConfig { entrypoint: entrypoint.map(words), cmd: cmd.map(words), ..RunConfig::default() }
    }

    #[test]
    fn what_is_typed_replaces_the_arguments_and_an_entrypoint_replaces_both() {
        for (own, entrypoint, typed, meant) in [
            (image(None, Some("sh -i")), None, "", "sh -i"),
            (image(None, Some("sh -i")), None, "ls /", "ls /"),
            (image(Some("tini --"), Some("sh")), None, "", "tini -- sh"),
            (image(Some("tini --"), Some("sh")), None, "ls", "tini -- ls"),
            (image(Some("tini --"), Some("sh")), Some("make"), "", "make"),
            (image(Some("tini --"), Some("sh")), Some("make"), "all", "make all"),
            (image(Some("tini --"), Some("sh")), Some(""), "ls", "ls"),
            (image(Some("tini --"), Some("sh")), Some(""), "", ""),
        ] {
            assert_eq!(command(&own, entrypoint, &words(typed)), words(meant), "{entrypoint:?} {typed}");
        }
    }

    #[test]
    fn an_image_without_a_search_path_has_the_usual_one() {
        let own =
            RunConfig { env: vec!["A=b=c".into(), "=x".into(), "novalue".into()], ..RunConfig::default() };
        let expected = [("A", "b=c"), ("PATH", DEFAULT_PATH)];
        assert_eq!(env(&own), expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        let own = RunConfig { env: vec!["PATH=/x".into()], ..RunConfig::default() };
        assert_eq!(env(&own)["PATH"], "/x");
    }

    #[test]
    fn odd_places_are_refused() {
        for bad in ["a", "/a/../b", "/a\0b", ".."] {
            let own = RunConfig { working_dir: bad.into(), ..RunConfig::default() };
            assert!(workdir(&own).is_err(), "{bad:?}");
            let own = RunConfig {
                volumes: [(bad.to_owned(), serde_json::Value::Null)].into(),
                ..RunConfig::default()
            };
            assert!(volumes(&own).is_err(), "{bad:?}");
        }
        let own = RunConfig {
            volumes: [("/data/".to_owned(), serde_json::json!({}))].into(),
            ..RunConfig::default()
        };
        assert_eq!(volumes(&own).unwrap(), [Path::new("/data")]);
    }

    #[test]
    fn stop_signals_have_names_numbers_and_distances() {
        let of = |text: &str| {
            let own = RunConfig { stop_signal: Some(text.into()), ..RunConfig::default() };
            stop_signal(&own).map_err(|_| ())
        };
        assert_eq!(of("SIGQUIT"), Ok(Some(3)));
        assert_eq!(of("9"), Ok(Some(9)));
        assert_eq!(of("SIGRTMIN+3"), Ok(Some(37)));
        assert_eq!(of("RTMAX-1"), Ok(Some(63)));
        assert_eq!(of(""), Ok(None));
        for bad in ["SIGNOPE", "0", "-1", "99", "SIGRTMIN+99", "SIGRTMIN-1"] {
            assert_eq!(of(bad), Err(()), "{bad}");
        }
    }

    #[test]
    fn a_healthcheck_has_dockers_defaults_and_a_shell_where_it_wants_one() {
        let own = |test: &[&str]| {
            let test = test.iter().map(|word| (*word).to_owned()).collect();
            let asked = Asked { test, retries: -1, interval: 2_000_000_000, ..Asked::default() };
            RunConfig { healthcheck: Some(asked), ..RunConfig::default() }
        };
        let found = health(&own(&["CMD-SHELL", "true || false"])).unwrap();
        assert_eq!(found.command, ["/bin/sh", "-c", "true || false"]);
        assert_eq!((found.interval_ms, found.timeout_ms, found.retries), (2_000, 30_000, 3));
        assert_eq!((found.start_period_ms, found.start_interval_ms), (0, 5_000));
        assert_eq!(health(&own(&["CMD", "/check", "-q"])).unwrap().command, ["/check", "-q"]);
        for none in [&["NONE"][..], &[], &["CMD"], &["CMD-SHELL"], &["OTHER", "x"]] {
            assert_eq!(health(&own(none)), None);
        }
    }

    proptest! {
        #[test]
        fn no_configuration_makes_us_panic(text: String, nanos: i64, retries: i64) {
            let asked = Asked { test: vec!["CMD-SHELL".into(), text.clone()], interval: nanos, timeout: nanos, start_period: nanos, start_interval: nanos, retries, ..Asked::default() };
            let own = RunConfig { env: vec![text.clone()], working_dir: text.clone(), stop_signal: Some(text.clone()), healthcheck: Some(asked), volumes: [(text, serde_json::Value::Null)].into(), ..RunConfig::default() };
            let _ = (env(&own), workdir(&own), stop_signal(&own), volumes(&own));
            let found = health(&own).unwrap();
            prop_assert!(found.interval_ms >= 1 && found.timeout_ms >= 1 && found.retries >= 1);
        }
    }
}
