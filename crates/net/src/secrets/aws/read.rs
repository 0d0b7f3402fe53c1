//! A request that is signed for AWS (Signature Version 4): what its signature says. Pure.

use crate::secrets::query::Decoded;
use http::{HeaderMap, Uri, header, request};

/// What a signature of this version begins with.
pub(super) const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// Where the hash of the body stands.
pub(super) const CONTENT_HASH: &str = "x-amz-content-sha256";

/// A signature and what it covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::secrets) struct Signed {
    /// Where it stands.
    pub(super) form: Form,
    /// The access key's id.
    pub(super) key_id: String,
    /// `20260131/eu-west-1/s3/aws4_request`
    pub(super) scope: Scope,
    /// `20260131T120000Z`
    pub(super) stamp: String,
    /// The names of the headers it covers, in its order.
    pub(super) headers: Vec<String>,
    /// In hexadecimal.
    pub(super) signature: String,
}

/// What a signing key is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scope {
    pub(super) date: String,
    pub(super) region: String,
    pub(super) service: String,
}

/// Where a signature stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// In `authorization`.
    Header,
    /// In the query: a URL that is signed in advance.
    Query,
}

/// Whether a head says that it is signed in a header.
pub(super) fn is_signed(headers: &HeaderMap) -> bool {
    headers.get(header::AUTHORIZATION).is_some_and(|value| value.as_bytes().starts_with(ALGORITHM.as_bytes()))
}

impl Signed {
    /// `None` if there is no signature that can be read.
    pub(in crate::secrets) fn read(head: &request::Parts) -> Option<Signed> {
        match is_signed(&head.headers) {
            true => from_header(&head.headers),
            false => from_query(&head.uri),
        }
    }
}

impl Scope {
    /// As it stands in what is signed.
    pub(super) fn words(&self) -> String {
        format!("{}/{}/{}/aws4_request", self.date, self.region, self.service)
    }
}

fn from_header(headers: &HeaderMap) -> Option<Signed> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let fields = value.strip_prefix(ALGORITHM)?;
    let field = |name: &str| {
        fields.split(',').map(str::trim).find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
    };
    let (key_id, scope) = credential(field("Credential")?)?;
    let stamp = headers.get("x-amz-date")?.to_str().ok()?.to_owned();
    let names = field("SignedHeaders")?.split(';').map(str::to_owned).collect();
    let signature = field("Signature")?.to_owned();
    Some(Signed { form: Form::Header, key_id, scope, stamp, headers: names, signature })
}

fn from_query(uri: &Uri) -> Option<Signed> {
    let query = uri.query()?;
    let field = |name: &str| {
        let raw = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
        String::from_utf8(Decoded::new(raw).bytes).ok()
    };
    if field("X-Amz-Algorithm")? != ALGORITHM {
        return None;
    }
    let (key_id, scope) = credential(&field("X-Amz-Credential")?)?;
    let headers = field("X-Amz-SignedHeaders")?.split(';').map(str::to_owned).collect();
    let (stamp, signature) = (field("X-Amz-Date")?, field("X-Amz-Signature")?);
    Some(Signed { form: Form::Query, key_id, scope, stamp, headers, signature })
}

fn credential(text: &str) -> Option<(String, Scope)> {
    let mut parts = text.split('/').map(str::to_owned);
    let (key_id, date) = (parts.next()?, parts.next()?);
    let (region, service) = (parts.next()?, parts.next()?);
    let is_whole = parts.next().as_deref() == Some("aws4_request") && parts.next().is_none();
    is_whole.then_some((key_id, Scope { date, region, service }))
}
