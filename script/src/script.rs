//! One script: read once, then called for each question with nothing kept in between.

use crate::values;
use airlock_protocol::script::{Answer, Ask, Hooks, Said};
use starlark::{
    PrintHandler,
    codemap::FileSpanRef,
    environment::{FrozenModule, Globals, GlobalsBuilder, LibraryExtension, Module},
    eval::{BeforeStmtFuncDyn, Evaluator},
    syntax::{AstModule, Dialect},
    values::Value,
};
use std::{cell::RefCell, collections::BTreeMap};

/// Most lines that one call may print, and the longest of them.
const MOST_PRINTED: (usize, usize) = (100, 1000);
/// Longest text of an error.
const LONGEST_ERROR: usize = 2000;
/// Deepest call.
const DEEPEST: usize = 100;

/// A script that was read.
pub(crate) struct Script {
    module: FrozenModule,
    hooks: Hooks,
    steps: u64,
}

/// Lines that were printed.
#[derive(Default)]
struct Printed(RefCell<Vec<String>>);

/// Ends a call that executes too many statements.
struct Steps {
    left: u64,
}

impl Script {
    /// Reads a script, and what it printed meanwhile.
    pub(crate) fn load(
        name: &str,
        text: String,
        secrets: &BTreeMap<String, String>,
        steps: u64,
    ) -> (Result<Script, String>, Vec<String>) {
        let printed = Printed::default();
        let loaded = evaluate(name, text, secrets, steps, &printed);
        (loaded, printed.0.into_inner())
    }

    /// Which functions it has.
    pub(crate) fn hooks(&self) -> Hooks {
        self.hooks
    }

    /// Calls the function that a question is for.
    pub(crate) fn answer(&self, ask: &Ask) -> Answer {
        let printed = Printed::default();
        let said = self.call(ask, &printed).unwrap_or_else(Said::Failed);
        Answer { said, printed: printed.0.into_inner() }
    }

    fn call(&self, ask: &Ask, printed: &Printed) -> Result<Said, String> {
        let name = match ask {
            Ask::Host { .. } => "is_host_allowed",
            Ask::Request(_) => "on_request",
            Ask::Response(..) => "on_response",
            Ask::Load { .. } => return Err("a script is read once".to_owned()),
        };
        let function = self.module.get(name).map_err(|_| format!("the script has no {name}"))?;
        let module = Module::new();
        let function = function.owned_value(module.frozen_heap());
        let heap = module.heap();
        let arguments: Vec<Value<'_>> = match ask {
            Ask::Host { host, port } => vec![heap.alloc(host.as_str()), heap.alloc(i32::from(*port))],
            Ask::Request(request) => vec![values::request(heap, request)],
            Ask::Response(request, response) => {
                vec![values::request(heap, request), values::response(heap, response)]
            }
            Ask::Load { .. } => Vec::new(),
        };
        let mut evaluator = evaluator(&module, printed, self.steps)?;
        let said = evaluator.eval_function(function, &arguments, &[]).map_err(|err| shown(&err))?;
        values::said(ask, said)
    }
}

fn evaluate(
    name: &str,
    text: String,
    secrets: &BTreeMap<String, String>,
    steps: u64,
    printed: &Printed,
) -> Result<Script, String> {
    let dialect = Dialect { enable_load: false, enable_f_strings: true, ..Dialect::Standard };
    let parsed = AstModule::parse(name, text, &dialect).map_err(|err| shown(&err))?;
    let module = Module::new();
    module.set("secrets", values::dictionary(module.heap(), secrets));
    evaluator(&module, printed, steps)?.eval_module(parsed, &globals()).map_err(|err| shown(&err))?;
    let module = module.freeze().map_err(|err| format!("{err:?}"))?;
    let has = |name: &str| module.get_option(name).ok().flatten().is_some();
    let hooks =
        Hooks { host: has("is_host_allowed"), request: has("on_request"), response: has("on_response") };
    if hooks == Hooks::default() {
        return Err("the script has none of is_host_allowed, on_request and on_response".to_owned());
    }
    Ok(Script { module, hooks, steps })
}

fn globals() -> Globals {
    let more =
        [LibraryExtension::Json, LibraryExtension::Map, LibraryExtension::Filter, LibraryExtension::Print];
    GlobalsBuilder::extended_by(&more).build()
}

fn evaluator<'v, 'a>(
    module: &'v Module,
    printed: &'a Printed,
    steps: u64,
) -> Result<Evaluator<'v, 'a, 'a>, String> {
    let mut evaluator = Evaluator::new(module);
    evaluator.set_print_handler(printed);
    evaluator.set_max_callstack_size(DEEPEST).map_err(|err| err.to_string())?;
    let counter: Box<dyn BeforeStmtFuncDyn<'a, 'a>> = Box::new(Steps { left: steps });
    evaluator.before_stmt_for_dap(counter.into());
    Ok(evaluator)
}

impl<'a, 'e: 'a> BeforeStmtFuncDyn<'a, 'e> for Steps {
    fn call<'v>(&mut self, _at: FileSpanRef, _evaluator: &mut Evaluator<'v, 'a, 'e>) -> starlark::Result<()> {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(starlark::Error::new_other(anyhow::anyhow!("the script executes too many statements"))),
        }
    }
}

impl PrintHandler for Printed {
    fn println(&self, text: &str) -> starlark::Result<()> {
        let (lines, length) = MOST_PRINTED;
        let mut printed = self.0.borrow_mut();
        if printed.len() < lines {
            printed.push(text.chars().take(length).collect());
        }
        Ok(())
    }
}

fn shown(err: &starlark::Error) -> String {
    err.to_string().chars().take(LONGEST_ERROR).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use airlock_protocol::script::{Request, Response};

    fn load(text: &str) -> Result<Script, String> {
        let secrets = BTreeMap::from([("KEY".to_owned(), "placeholder".to_owned())]);
        Script::load("test.star", text.to_owned(), &secrets, 10_000).0
    }

    fn ask(text: &str, ask: &Ask) -> Answer {
        load(text).unwrap().answer(ask)
    }

    fn request() -> Request {
        Request {
            method: "POST".into(),
            host: "a.test".into(),
            port: 443,
            path: "/x".into(),
            query: "a=1".into(),
            headers: vec![("accept".into(), "a".into()), ("x-two".into(), "1".into()), ("x-two".into(), "2".into())],
            body: Some("{\"n\": 1}".into()),
        }
    }

    #[test]
    fn a_host_is_allowed_or_not_and_anything_else_is_a_failure() {
        let text = "def is_host_allowed(host, port):\n    print('asked', host)\n    return host.endswith('.test') and port == 443\n";
        let host = |host: &str| Ask::Host { host: host.into(), port: 443 };
        assert_eq!(ask(text, &host("a.test")), Answer { said: Said::Pass, printed: vec!["asked a.test".into()] });
        assert!(matches!(ask(text, &host("b.other")).said, Said::Deny(_)));
        let odd = "def is_host_allowed(host, port):\n    return 'yes'\n";
        assert!(matches!(ask(odd, &host("a.test")).said, Said::Failed(_)));
    }

    #[test]
    fn a_request_passes_changes_or_is_denied() {
        let ask = |body: &str| {
            let text = format!("def on_request(req):\n    {body}\n");
            self::ask(&text, &Ask::Request(request())).said
        };
        assert_eq!(ask("return None"), Said::Pass);
        assert_eq!(ask("return req"), Said::Pass);
        assert_eq!(ask("return True"), Said::Pass);
        assert!(matches!(ask("return False"), Said::Deny(_)));
        assert_eq!(
            ask("req['headers']['authorization'] = 'Bearer ' + secrets['KEY']; req['body'] = None; return req"),
            Said::Failed("on_request cannot take the body away; write \"\"".into())
        );
        let Said::Request(headers, body) =
            ask("req['headers']['authorization'] = 'Bearer ' + secrets['KEY']; req['body'] = 'n'; return req")
        else {
            panic!("not changed")
        };
        assert!(headers.contains(&("authorization".into(), "Bearer placeholder".into())));
        assert_eq!(headers.iter().filter(|(name, _)| name == "x-two").count(), 2);
        assert_eq!(body.as_deref(), Some("n"));
        assert!(matches!(ask("fail('not so')"), Said::Failed(why) if why.contains("not so")));
        assert!(matches!(ask("req['path'] = '/other'; return req"), Said::Failed(why) if why.contains("path")));
    }

    #[test]
    fn an_answer_may_change_status_headers_and_body() {
        let text = "def on_response(req, resp):\n    resp['status'] = 418\n    resp['body'] = req['path'] + resp['body']\n    return resp\n";
        let response = Response { status: 200, headers: vec![("a".into(), "b".into())], body: Some("!".into()) };
        let said = ask(text, &Ask::Response(request(), response)).said;
        let changed = Response { status: 418, headers: vec![("a".into(), "b".into())], body: Some("/x!".into()) };
        assert_eq!(said, Said::Response(changed));
    }

    #[test]
    fn what_never_ends_is_ended_and_what_is_wrong_is_told() {
        let text = "def on_request(req):\n    for i in range(1000000):\n        x = i\n";
        assert!(matches!(ask(text, &Ask::Request(request())).said, Said::Failed(why) if why.contains("too many")));
        let deep = "def f(n):\n    return f(n + 1)\ndef on_request(req):\n    return f(0)\n";
        assert!(matches!(ask(deep, &Ask::Request(request())).said, Said::Failed(_)));
        assert!(load("for i in range(100000):\n    x = i\n").is_err());
        assert!(load("def on_request(").is_err_and(|why| why.contains("test.star:1")));
        assert!(load("load('other.star', 'x')\ndef on_request(r):\n    return None\n").is_err());
        assert!(load("x = 1\n").is_err_and(|why| why.contains("none of")));
    }

    #[test]
    fn nothing_is_kept_between_calls() {
        let text = "seen = []\ndef on_request(req):\n    seen.append(1)\n";
        assert!(matches!(ask(text, &Ask::Request(request())).said, Said::Failed(_)));
    }
}
