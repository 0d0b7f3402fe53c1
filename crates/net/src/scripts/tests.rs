//! The filter, with a program of the test's own that answers as it is told.

use super::*;
use crate::tests::setup;
use airlock_protocol::{
    policy::Policy,
    script::{self as wire, Answer},
};
use std::{cell::RefCell, io, os::unix::net::UnixStream, time::Duration};

/// Answers questions in a thread; none: the program ends.
type Answers = fn(Ask) -> Option<Answer>;

/// A program that sleeps, and a thread that speaks for it.
fn start(answers: Answers) -> Start {
    Rc::new(move || {
        let (ours, mut theirs) = UnixStream::pair()?;
        std::thread::spawn(move || {
            while let Ok(Some(ask)) = wire::read::<Ask>(&mut theirs) {
                match answers(ask) {
                    Some(answer) => wire::write(&mut theirs, &answer).unwrap(),
                    None => return,
                }
            }
        });
        let child = std::process::Command::new("sleep").arg("1000").spawn()?;
        Ok(Helper { stream: ours, child })
    })
}

struct World {
    scripts: Scripts,
    told: Rc<RefCell<Vec<String>>>,
    _folder: tempfile::TempDir,
}

fn world(policy: Policy, answers: Answers) -> World {
    let folder = tempfile::tempdir().unwrap();
    let ask_timeout = Duration::from_secs(1);
    let made = airlock_gate::Setup { ask_timeout, can_open: true, ..setup(folder.path(), policy) };
    let gate = Gate::new(made).unwrap();
    let told: Rc<RefCell<Vec<String>>> = Rc::default();
    let lines = told.clone();
    let scripts = Scripts::load(Setup {
        gate: Rc::new(gate),
        start: start(answers),
        script: Script { name: "x.star".into(), text: String::new() },
        secrets: BTreeMap::new(),
        told: Rc::new(move |line| lines.borrow_mut().push(line.to_owned())),
    });
    World { scripts: scripts.unwrap(), told, _folder: folder }
}

fn answer(said: Said) -> Option<Answer> {
    Some(Answer { said, printed: vec!["printed".into()] })
}

const ALL: Hooks = Hooks { host: true, request: true, response: true };

fn passing(body: Option<Body>) -> Passing {
    Passing {
        target: "a.test".parse().unwrap(),
        port: 443,
        is_verified: true,
        method: "POST".into(),
        path: "/x".into(),
        rule: None,
        body,
    }
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

fn head() -> request::Parts {
    http::Request::post("/x?q=1").header("host", "a.test").header("a", "b").body(()).unwrap().into_parts().0
}

fn words(stop: Stop) -> String {
    match stop {
        Stop::Denied(denial) => denial.to_string(),
        Stop::Failed(why) => why,
        Stop::Answered(_) => panic!("answered here"),
    }
}

#[test]
fn a_host_is_asked_for_and_a_denial_says_whose_it_is() {
    run(async {
        let world = world(Policy::default(), |ask| match ask {
            Ask::Load { .. } => answer(Said::Ready(ALL)),
            Ask::Host { host, .. } if host == "a.test" => answer(Said::Pass),
            _ => answer(Said::Deny("not there".into())),
        });
        let connect = |host: &str| {
            let target: Target = host.parse().unwrap();
            let world = &world;
            async move { world.scripts.connect(&target, 443).await.map_err(words) }
        };
        assert_eq!(connect("a.test").await, Ok(()));
        assert_eq!(
            connect("b.test").await.unwrap_err(),
            "connecting to b.test:443 is not allowed: the script does not allow it, script x.star (not there)"
        );
        assert_eq!(world.told.borrow().as_slice(), ["printed"; 3]);
    });
}

#[test]
fn heads_and_bodies_change_both_ways() {
    run(async {
        let world = world(Policy::default(), |ask| match ask {
            Ask::Load { .. } => answer(Said::Ready(ALL)),
            Ask::Request(request) => {
                assert_eq!((request.query.as_str(), request.path.as_str()), ("q=1", "/x"));
                assert!(request.headers.iter().all(|(name, _)| name != "host"));
                let body = request.body.map(|body| body + "!");
                answer(Said::Request(vec![("a".into(), "c".into())], body))
            }
            Ask::Response(_, response) => answer(Said::Response(wire::Response { status: 418, ..response })),
            Ask::Host { .. } => None,
        });
        let body = Some(Body { most: 100, over: Over::Deny });
        let (seen, unseen) = (passing(body), passing(None));
        let mut head = head();

        assert_eq!(world.scripts.gathers(&seen, Way::Out, &head.headers), Some(100));
        assert_eq!(world.scripts.gathers(&unseen, Way::Out, &head.headers), None);
        let remade = world.scripts.whole_request(&seen, &mut head, Whole::Body("text".into())).await;
        assert_eq!(remade.map_err(words), Ok(Some("text!".into())));
        assert_eq!(
            (&head.headers["a"], &head.headers["host"]),
            (&"c".parse().unwrap(), &"a.test".parse().unwrap())
        );
        assert_eq!(head.headers["accept-encoding"], "identity");

        let mut answered = http::Response::new(()).into_parts().0;
        assert!(world.scripts.response(&unseen, &mut answered).await.is_ok());
        assert_eq!(answered.status, 418);
    });
}

#[test]
fn a_body_that_cannot_be_shown_is_denied_or_passes_as_the_rule_says() {
    run(async {
        let world = world(Policy::default(), |ask| match ask {
            Ask::Load { .. } => answer(Said::Ready(ALL)),
            Ask::Request(request) => {
                assert_eq!(request.body, None);
                answer(Said::Pass)
            }
            _ => answer(Said::Pass),
        });
        let rule = |over| passing(Some(Body { most: 4, over }));
        let binary = || Whole::Body(Bytes::from_static(b"\xff"));
        for body in [Whole::Over, binary()] {
            let denied = world.scripts.whole_request(&rule(Over::Deny), &mut head(), body).await;
            assert!(denied.map_err(words).unwrap_err().contains("script x.star"));
        }
        let passed = world.scripts.whole_request(&rule(Over::Pass), &mut head(), binary()).await;
        assert_eq!(passed.map_err(words), Ok(Some(Bytes::from_static(b"\xff"))));
        let passed = world.scripts.whole_request(&rule(Over::Pass), &mut head(), Whole::Over).await;
        assert_eq!(passed.map_err(words), Ok(None));

        let mut events = http::Response::new(()).into_parts().0;
        events.headers.insert("content-type", "text/event-stream".parse().unwrap());
        assert_eq!(world.scripts.gathers(&rule(Over::Deny), Way::In, &events.headers), None);
        assert!(world.scripts.response(&rule(Over::Deny), &mut events).await.is_err());
        assert!(world.scripts.response(&rule(Over::Pass), &mut events).await.is_ok());
    });
}

#[test]
fn a_program_that_fails_is_a_denial_and_is_started_anew() {
    run(async {
        let world = world(Policy::default(), |ask| match ask {
            Ask::Load { .. } => answer(Said::Ready(ALL)),
            Ask::Host { port: 1, .. } => None,
            Ask::Host { port: 2, .. } => answer(Said::Failed("oops".into())),
            _ => answer(Said::Pass),
        });
        let target: Target = "a.test".parse().unwrap();
        let connect = async |port| world.scripts.connect(&target, port).await.map_err(words);

        assert!(connect(1).await.unwrap_err().contains("it ended"));
        assert_eq!(connect(3).await, Ok(()));
        assert!(connect(2).await.unwrap_err().contains("oops"));
        assert_eq!(connect(3).await, Ok(()));
        assert!(world.told.borrow().contains(&"oops".to_owned()));
    });
}

#[test]
fn one_that_never_answers_is_given_up_and_ended() {
    run(async {
        let world = world(Policy::default(), |ask| match ask {
            Ask::Load { .. } => answer(Said::Ready(ALL)),
            Ask::Host { port: 1, .. } => loop {
                std::thread::park();
            },
            _ => answer(Said::Pass),
        });
        let target: Target = "a.test".parse().unwrap();
        let late = world.scripts.connect(&target, 1).await.map_err(words).unwrap_err();
        assert!(late.contains("longer than 1 s"), "{late}");
        assert!(world.scripts.connect(&target, 2).await.is_ok());
    });
}

#[test]
fn only_recorded_is_not_stopped() {
    run(async {
        let audit = Policy { audit_only: true, ..Policy::default() };
        let world = world(audit, |ask| match ask {
            Ask::Load { .. } => answer(Said::Ready(ALL)),
            _ => answer(Said::Deny("no".into())),
        });
        assert!(world.scripts.connect(&"a.test".parse().unwrap(), 443).await.is_ok());
    });
}

#[test]
fn a_script_that_cannot_be_read_is_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let _ = folder;
    let begin = |answers: Answers| {
        let script = Script { name: "x.star".into(), text: String::new() };
        Link::begin(start(answers), script, BTreeMap::new(), Rc::new(|_| {})).map(|(_, hooks)| hooks)
    };
    assert_eq!(begin(|_| answer(Said::Ready(ALL))), Ok(ALL));
    assert_eq!(begin(|_| answer(Said::Failed("x.star:1: no".into()))), Err("x.star:1: no".into()));
    assert!(begin(|_| None).unwrap_err().contains("ended at once"));
    let never: Start = Rc::new(|| Err(io::ErrorKind::NotFound.into()));
    let script = Script { name: "x".into(), text: String::new() };
    assert!(Link::begin(never, script, BTreeMap::new(), Rc::new(|_| {})).is_err());
}
