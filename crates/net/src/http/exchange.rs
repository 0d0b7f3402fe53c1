//! One request from its head to the head of its answer: checked, judged, filtered, sent.

use super::{
    Bad, Session, answer,
    body::{Body, Cut, Passed},
    calls::Unanswered,
    came::Came,
    carrier,
    early::{Early, Told},
    far::{Failure, Far, Kept, Origin, Past},
    filter::{Passing, Stop, Way},
    flight::{Flight, Waits, Why},
    flow::Flow,
    framing,
    heads::{self, Follows},
    renew::{self, Copied},
    target::{self, Checked, Connection},
    upgrade::{self, Both},
};
use airlock_gate::{
    Crossing, Permit, Reason,
    request::{GitCall, Request as Judged},
};
use http::{
    HeaderMap, Method, Request, Response, StatusCode, Uri, Version, header, request, response,
    uri::PathAndQuery,
};
use http_body::Body as _;
use http_body_util::Full;
use hyper::body::Bytes;
use std::{future::poll_fn, pin::pin, rc::Rc, task::Poll};

/// How often a request is sent to a server that closes connections before it takes anything.
const TRIES: u32 = 3;

/// What the program gets; `Cut` where its connection or stream is to be broken off.
pub(super) type Answer = Result<Response<Body>, Cut>;

/// A request that was permitted.
pub(super) struct Permitted {
    head: request::Parts,
    /// Its target, as it is sent.
    sent: PathAndQuery,
    pub(super) flight: Rc<Flight>,
    /// What filters are told; none where no filter looks.
    pub(super) passing: Option<Passing>,
    /// Where the program wants to go on with something else.
    upgrade: Option<upgrade::Near>,
    /// Where what comes before an answer goes.
    told: Option<Told>,
    /// Whether nothing may follow it on its connection to the server.
    is_last: bool,
}

/// A request that may be sent.
pub(super) struct Ready {
    head: request::Parts,
    body: Passed,
}

/// What comes back to the program besides the answer.
#[derive(Default)]
pub(super) struct Back {
    /// Gets what comes before the answer.
    pub(super) told: Option<Told>,
    /// Its connection, where it may go on with something else behind the answer.
    pub(super) upgrade: Option<upgrade::Near>,
}

/// Carries one request.
pub(super) async fn exchange(
    session: &Rc<Session>,
    origin: &Rc<Origin>,
    request: Request<Came>,
    back: Back,
) -> Answer {
    let _unanswered = carrier::Unanswered::new(session);
    let near = request.version();
    let (mut permitted, incoming) = match permit(session, origin, request, back).await {
        Ok(permitted) => permitted,
        Err(refused) => return Ok(refused.map(Body::Ours)),
    };
    let flight = Rc::clone(&permitted.flight);
    session.requests.enter(&flight);
    let body = Passed::new(incoming, Way::Out, Rc::clone(&flight));
    let (ready, copied) = match filter_request(session, &mut permitted, body).await {
        Ok(filtered) => filtered,
        Err(stop) => return stopped(&flight, stop, &permitted.head),
    };
    let follows = if permitted.is_last { Follows::Nothing } else { Follows::Requests };
    let mut sent = send((session, origin), &permitted, ready, follows).await;
    if let Ok(answered) = &sent
        && answered.head.status == StatusCode::UNAUTHORIZED
        && let Some(again) = renew::again(session, &permitted, copied).await
    {
        sent = send((session, origin), &permitted, again, follows).await;
    }
    match sent {
        Ok(answered) => receive(session, origin, permitted, answered, near).await,
        Err(Unsent::Failure(Failure::Denied(denial))) => {
            flight.stop(Why::Filter(Stop::Denied(denial.clone())));
            Ok(answer::denied(&denial, &permitted.head).map(Body::Ours))
        }
        Err(Unsent::Failure(Failure::Failed { status, reason, why })) => {
            flight.answered(status);
            Ok(answer::failed(status, reason, &why).map(Body::Ours))
        }
        Err(Unsent::Stopped) => why_stopped(&flight, &permitted.head),
        Err(Unsent::Closed) => Err(Cut),
    }
}

/// Checks and judges a request. What the program is told if it may not go on.
async fn permit(
    session: &Rc<Session>,
    origin: &Origin,
    request: Request<Came>,
    back: Back,
) -> Result<(Permitted, Came), Response<Full<Bytes>>> {
    let (head, body) = request.into_parts();
    let framed = framing::check_body(&head, body.is_end_stream());
    let judge = session.carrier.gate.judge();
    let takes = |checked: Checked| {
        let Connection { target, port, .. } = &origin.connection;
        let is_taken = checked.read_as.is_none() || judge.takes_encoded_slashes(target, *port);
        if is_taken { Ok(checked) } else { Err(target::encoded_slash()) }
    };
    let checked = framed.and_then(|()| check(&head, origin)).and_then(takes).map_err(|bad| {
        let _ = session.carrier.gate.note_denial(&session.trace, bad.reason, &bad.why);
        answer::bad(&bad)
    })?;
    let (judged, sent) = judged(&head, checked, origin);
    let judged = Rc::new(judged);
    let asked = session.carrier.gate.ask(Crossing::Request(Rc::clone(&judged))).await;
    let permit = asked.map_err(|denial| answer::denied(&denial, &head))?;
    let passing = passing(session, origin, &judged, &permit);
    let flight = Rc::new(Flight::new(&session.carrier.gate, permit, judged));
    let Back { told, upgrade } = back;
    let upgrade = upgrade.filter(|_| framing::is_websocket(&head));
    let is_last = framing::is_last(&head);
    Ok((Permitted { head, sent, flight, passing, upgrade, told, is_last }, body))
}

fn check(head: &request::Parts, origin: &Origin) -> Result<Checked, Bad> {
    let refused = |why: &str| Bad { status: 405, reason: Reason::Ambiguous, why: why.to_owned() };
    match head.method {
        Method::TRACE => return Err(refused("TRACE is not carried")),
        Method::CONNECT => return Err(refused("CONNECT is for the proxy of the sandbox only")),
        _ => {}
    }
    framing::check(head)?;
    target::check(head, &origin.connection)
}

/// As rules look at it, and its target as it is sent.
fn judged(head: &request::Parts, checked: Checked, origin: &Origin) -> (Judged, PathAndQuery) {
    let text = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
    };
    let method = head.method.as_str();
    let content_type = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let Checked { path, read_as, query, sent } = checked;
    let git = GitCall::of(method, read_as.as_ref().unwrap_or(&path), &query, content_type);
    let judged = Judged {
        target: origin.connection.target.clone(),
        port: origin.connection.port,
        is_tls: origin.connection.is_tls,
        method: method.to_owned(),
        path,
        read_as,
        query,
        headers: head.headers.iter().filter_map(text).collect(),
        websocket: framing::is_websocket(head),
        git,
        is_ssh: false,
    };
    (judged, sent)
}

fn passing(session: &Session, origin: &Origin, judged: &Judged, permit: &Permit) -> Option<Passing> {
    let Judged { target, port, path, .. } = judged;
    let is_looked_at = session.carrier.filters.iter().any(|filter| filter.looks_at(target, *port, path));
    is_looked_at.then(|| Passing {
        target: judged.target.clone(),
        port: judged.port,
        is_verified: origin.connection.is_tls,
        method: judged.method.clone(),
        path: judged.path.clone(),
        rule: permit.rule().map(str::to_owned),
        body: permit.body(),
    })
}

/// Through every filter, in order.
async fn filter_request(
    session: &Session,
    permitted: &mut Permitted,
    body: Passed,
) -> Result<(Ready, Option<Copied>), Stop> {
    let kept = told_by(&permitted.head);
    let mut sent = std::mem::replace(&mut permitted.head, kept);
    sent.uri = written(&sent.uri, &permitted.sent)?;
    filter_from(session, permitted, 0, (sent, body)).await
}

/// Through the filters from this one on; and the request as it was before the first that could make another of it.
pub(super) async fn filter_from(
    session: &Session,
    permitted: &Permitted,
    first: usize,
    (mut sent, mut body): (request::Parts, Passed),
) -> Result<(Ready, Option<Copied>), Stop> {
    let Permitted { head, sent: judged, passing, flight, .. } = permitted;
    let mut copied = None;
    if let Some(passing) = passing {
        for (place, filter) in session.carrier.filters.iter().enumerate().skip(first) {
            match filter.gathers(passing, Way::Out, &sent.headers) {
                Some(most) => {
                    let (whole, rest) = body.gather(most).await.map_err(|_| cut())?;
                    let remade = filter.whole_request(passing, &mut sent, whole).await?;
                    body = again(remade, rest, Way::Out, flight)?;
                }
                None => {
                    let names = filter.renewable(passing, &sent);
                    if !names.is_empty() && copied.is_none() {
                        copied = Some(Copied::new(place, names, &sent, &mut body));
                    }
                    if let Some(change) = filter.request(passing, &mut sent).await? {
                        body.change(change);
                    }
                }
            }
        }
    }
    if !body.keeps_length() {
        sent.headers.remove(header::CONTENT_LENGTH);
    }
    if sent.uri.path() != judged.path() || sent.method != head.method {
        return Err(Stop::Failed("the request that was judged became another".to_owned()));
    }
    Ok((Ready { head: sent, body }, copied))
}

/// As much of a head as is needed to answer its request.
fn told_by(head: &request::Parts) -> request::Parts {
    let (mut kept, ()) = Request::new(()).into_parts();
    kept.method = head.method.clone();
    kept.version = head.version;
    if let Some(kind) = head.headers.get(header::CONTENT_TYPE) {
        kept.headers.insert(header::CONTENT_TYPE, kind.clone());
    }
    kept
}

/// The target of a request as it was judged, and as it is sent.
fn written(uri: &Uri, judged: &PathAndQuery) -> Result<Uri, Stop> {
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(judged.clone());
    Uri::from_parts(parts).map_err(|_| Stop::Failed("the target cannot be written anew".to_owned()))
}

/// What goes on after a body was gathered.
fn again(remade: Option<Bytes>, rest: Option<Passed>, way: Way, flight: &Rc<Flight>) -> Result<Passed, Stop> {
    match (remade, rest) {
        (Some(whole), _) => Ok(Passed::remade(whole, way, Rc::clone(flight))),
        (None, Some(rest)) => Ok(rest),
        (None, None) => Err(cut()),
    }
}

fn cut() -> Stop {
    Stop::Failed("the body ended before it was whole".to_owned())
}

/// Why a request has no answer.
enum Unsent {
    /// There is no server for it.
    Failure(Failure),
    /// It was stopped on its way.
    Stopped,
    /// The server closed a connection that had been used before: programs try again by themselves.
    Closed,
}

/// An answer that has begun.
struct Answered {
    head: response::Parts,
    body: Came,
    flow: Rc<Flow>,
}

/// Sends a request, once more on a new connection if the server had closed the old one before it took anything.
async fn send(
    (session, origin): (&Session, &Rc<Origin>),
    permitted: &Permitted,
    ready: Ready,
    follows: Follows,
) -> Result<Answered, Unsent> {
    let (Ready { head, body }, flight) = (ready, &permitted.flight);
    let can_repeat = can_repeat(&head, &body);
    let body = match body.is_end_stream() {
        true => Body::Ours(Full::default()),
        false => Body::Passed(Box::new(body)),
    };
    let mut unsent = Some((head, body));
    for _ in 0..TRIES {
        let Some((mut head, body)) = unsent.take() else { break };
        let far = origin.take(can_repeat).await.map_err(Unsent::Failure)?;
        far.check(&origin.connection.target, &flight.pins).map_err(Unsent::Failure)?;
        heads::outgoing(&mut head, &origin.place, far.version(), follows);
        if heads::is_tied(head.headers.get_all(header::AUTHORIZATION)) {
            far.flow().binds();
        }
        let past = far.past();
        // A server may close a connection that waits just as it is taken: nobody but us knows that it waited.
        let again = (can_repeat && matches!(past, Past::Spare(_))).then(|| head.clone());
        flight.leads_to(far.flow().address());
        let (answered, flow) = hand_over(session, permitted, far, Request::from_parts(head, body)).await;
        match answered {
            None => return Err(Unsent::Stopped),
            Some(Ok(response)) => {
                let (head, body) = response.into_parts();
                if heads::is_tied(head.headers.get_all(header::WWW_AUTHENTICATE)) {
                    flow.binds();
                }
                return Ok(Answered { head, body, flow });
            }
            Some(Err(_)) if flight.is_stopped() => return Err(Unsent::Stopped),
            Some(Err(Unanswered { request, why })) => match (request, again) {
                // Nothing of it was written, and a head that was made ready once can be made ready again.
                (Some(request), _) => unsent = Some(request.into_parts()),
                (None, Some(head)) => unsent = Some((head, Body::Ours(Full::default()))),
                (None, None) if past == Past::Used => return Err(Unsent::Closed),
                (None, None) => {
                    let why = format!("{} did not answer: {why}", origin.connection.target);
                    return Err(Unsent::Failure(Failure::Failed { status: 502, reason: "reset", why }));
                }
            },
        }
    }
    let why = format!("{} closed {TRIES} connections before it took the request", origin.connection.target);
    Err(Unsent::Failure(Failure::Failed { status: 502, reason: "reset", why }))
}

type Sending = Result<Response<Came>, Unanswered>;

/// Waits for the head of the answer; none if the request was stopped before.
async fn hand_over(
    session: &Session,
    permitted: &Permitted,
    far: Far,
    request: Request<Body>,
) -> (Option<Sending>, Rc<Flow>) {
    let flight = &permitted.flight;
    let mut early = Early::default();
    let hint = |status: StatusCode, headers: HeaderMap| {
        if let Some(told) = &permitted.told {
            early.came(session, permitted.passing.as_ref(), told, (status, headers));
        }
    };
    match far {
        Far::Http1(Kept { line, flow, .. }) => {
            let answered = unless_stopped(flight, line.call(request, hint)).await;
            (answered.map(|answered| answered.map(|response| response.map(Came::from))), flow)
        }
        Far::Http2(mut caller, flow, _) => (unless_stopped(flight, caller.call(request, hint)).await, flow),
    }
}

/// Whether a request changes nothing and has no body, so that a server may get it twice (RFC 9110, 9.2.2).
fn can_repeat(head: &request::Parts, body: &Passed) -> bool {
    matches!(head.method, Method::GET | Method::HEAD | Method::OPTIONS) && body.is_end_stream()
}

/// Waits for the answer's head unless the request is stopped before.
async fn unless_stopped<T>(flight: &Flight, answer: impl Future<Output = T>) -> Option<T> {
    let mut answer = pin!(answer);
    poll_fn(|cx| {
        if flight.is_stopped() {
            return Poll::Ready(None);
        }
        let answered = answer.as_mut().poll(cx).map(Some);
        if answered.is_pending() {
            flight.watch(Waits::Head, cx);
        }
        answered
    })
    .await
}

/// The answer, through every filter in the opposite order.
async fn receive(
    session: &Rc<Session>,
    origin: &Rc<Origin>,
    permitted: Permitted,
    answered: Answered,
    near: Version,
) -> Answer {
    let Answered { mut head, body: mut incoming, flow } = answered;
    let Permitted { head: request, flight, passing, upgrade, is_last, .. } = permitted;
    flight.answered(head.status.as_u16());
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        let Some(upgrade) = upgrade else {
            let why = "the server changed to another protocol without being asked";
            return Ok(answer::failed(502, "upgrade", why).map(Body::Ours));
        };
        return Ok(switch(session, flight, passing, (head, incoming), (upgrade, flow)));
    }
    if let Came::Answer(answer) = &mut incoming
        && !is_last
    {
        answer.returns_to(origin, &flow);
    }
    let mut body = Passed::new(incoming, Way::In, Rc::clone(&flight));
    if let Some(passing) = &passing {
        match filter_response(session, passing, &flight, &mut head, body).await {
            Ok(filtered) => body = filtered,
            Err(stop) => return stopped(&flight, stop, &request),
        }
    }
    let is_bodiless = request.method == Method::HEAD || head.status == StatusCode::NOT_MODIFIED;
    if !body.keeps_length() && !is_bodiless {
        head.headers.remove(header::CONTENT_LENGTH);
    }
    heads::incoming(&mut head, near);
    Ok(Response::from_parts(head, Body::Passed(Box::new(body))))
}

async fn filter_response(
    session: &Session,
    passing: &Passing,
    flight: &Rc<Flight>,
    head: &mut response::Parts,
    mut body: Passed,
) -> Result<Passed, Stop> {
    for filter in session.carrier.filters.iter().rev() {
        match filter.gathers(passing, Way::In, &head.headers) {
            Some(most) => {
                let (whole, rest) = body.gather(most).await.map_err(|_| cut())?;
                let remade = filter.whole_response(passing, head, whole).await?;
                body = again(remade, rest, Way::In, flight)?;
            }
            None => {
                if let Some(change) = filter.response(passing, head).await? {
                    body.change(change);
                }
            }
        }
    }
    Ok(body)
}

/// Both sides go on with something else.
fn switch(
    session: &Rc<Session>,
    flight: Rc<Flight>,
    passing: Option<Passing>,
    (head, incoming): (response::Parts, Came),
    (near, flow): (upgrade::Near, Rc<Flow>),
) -> Response<Body> {
    let Some(far) = incoming.into_switched() else {
        let why = "the server's connection cannot go on with another protocol";
        return answer::failed(502, "upgrade", why).map(Body::Ours);
    };
    let filters = &session.carrier.filters;
    let changes = [Way::Out, Way::In].map(|way| upgrade::changes(filters, passing.as_ref(), way));
    session.upgrades.start(upgrade::carry(Both { near, far, flight, flow, changes }));
    Response::from_parts(head, Body::Ours(Full::default()))
}

/// What the program is told where something stopped its request.
fn stopped(flight: &Flight, stop: Stop, head: &request::Parts) -> Answer {
    flight.stop(Why::Filter(stop));
    why_stopped(flight, head)
}

fn why_stopped(flight: &Flight, head: &request::Parts) -> Answer {
    match flight.why() {
        Some(Why::Filter(Stop::Denied(denial))) => Ok(answer::denied(&denial, head).map(Body::Ours)),
        Some(Why::Filter(Stop::Failed(why))) => Ok(answer::failed(502, "failed", &why).map(Body::Ours)),
        Some(Why::Filter(Stop::Answered(document))) => {
            flight.answered(StatusCode::OK.as_u16());
            Ok(answer::given(document).map(Body::Ours))
        }
        Some(Why::Revoked | Why::Spent) | None => Err(Cut),
    }
}
