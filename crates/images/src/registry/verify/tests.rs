use super::*;
use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _},
};
use data_encoding::BASE64;
use proptest::prelude::*;

struct Signer(EcdsaKeyPair);

impl Signer {
    fn new() -> Signer {
        Signer(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap())
    }

    fn key(&self) -> Key {
        let mut der = BASE64.decode(b"MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgA=").unwrap();
        der.extend(self.0.public_key().as_ref());
        let pem = format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", BASE64.encode(&der));
        Key::from_pem(&pem).unwrap()
    }

    fn sign(&self, payload: &str) -> Signature {
        let signature = self.0.sign(&SystemRandom::new(), payload.as_bytes()).unwrap();
        Signature::new(payload.as_bytes().to_vec(), &BASE64.encode(signature.as_ref())).unwrap()
    }
}

fn payload(digest: &Digest) -> String {
    format!(
        r#"{{"critical":{{"identity":{{"docker-reference":"registry.example/a"}},"image":{{"docker-manifest-digest":"{digest}"}},"type":"cosign container image signature"}},"optional":null}}"#
    )
}

fn policy(keys: Vec<Key>) -> Policy {
    let repository = "registry.example/team/*".parse().unwrap();
    Policy { demands: vec![Demand { repository, keys, signatures: Vec::new() }] }
}

fn name(text: &str) -> Reference {
    text.parse().unwrap()
}

#[test]
fn a_signature_of_the_right_key_over_the_right_digest_counts() {
    let (signer, digest) = (Signer::new(), Digest::of(b"image"));
    let policy = policy(vec![Signer::new().key(), signer.key()]);

    let checked =
        policy.check(&name("registry.example/team/app:1"), &[digest], &[signer.sign(&payload(&digest))]);

    assert!(checked.is_ok(), "{checked:?}");
}

#[test]
fn nothing_is_demanded_of_other_repositories() {
    let policy = policy(vec![Signer::new().key()]);
    for other in ["registry.example/teams/app", "registry.example/app", "other.example/team/app", "app"] {
        assert!(policy.check(&name(other), &[Digest::of(b"x")], &[]).is_ok(), "{other}");
    }
}

#[test]
fn what_is_signed_by_others_for_others_or_not_at_all_is_refused() {
    let (signer, stranger, digest) = (Signer::new(), Signer::new(), Digest::of(b"image"));
    let policy = policy(vec![signer.key()]);
    let image = name("registry.example/team/app:1");
    let other = payload(&Digest::of(b"another"));
    let kind = payload(&digest).replace("cosign container", "some other");
    let changed = Signature::new(payload(&digest).into_bytes(), &signer.sign(&other).to_line_signature());
    for (signatures, words) in [
        (vec![], "there is no signature for"),
        (vec![stranger.sign(&payload(&digest))], "no key that is demanded made it"),
        (vec![signer.sign(&other)], "it is for sha256:"),
        (vec![signer.sign(&kind)], "no statement about an image"),
        (vec![signer.sign("{}")], "no statement about an image"),
        (vec![changed.unwrap()], "no key that is demanded made it"),
    ] {
        let error = policy.check(&image, &[digest], &signatures).unwrap_err();
        let why = std::error::Error::source(&error).unwrap().to_string();
        assert!(why.contains(words), "{why}");
    }
}

#[test]
fn every_demand_that_names_a_repository_must_be_met() {
    let (first, second, digest) = (Signer::new(), Signer::new(), Digest::of(b"image"));
    let mut policy = policy(vec![first.key()]);
    policy.demands.extend(super::tests::policy(vec![second.key()]).demands);
    let image = name("registry.example/team/app:1");
    let (one, two) = (first.sign(&payload(&digest)), second.sign(&payload(&digest)));

    assert!(policy.check(&image, &[digest], std::slice::from_ref(&one)).is_err());
    assert!(policy.check(&image, &[digest], &[one, two]).is_ok());
}

#[test]
fn what_was_kept_is_checked_anew_with_the_keys_of_the_day() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).unwrap();
    let (signer, digest) = (Signer::new(), Digest::of(b"image"));
    let names = [name("registry.example/team/app:1")];
    assert!(policy(vec![signer.key()]).check_stored(&store, &names, &[digest]).is_err());

    keep(&store, &digest, &[signer.sign(&payload(&digest))]).unwrap();
    keep(&store, &digest, &[Signer::new().sign(&payload(&digest))]).unwrap();

    assert!(policy(vec![signer.key()]).check_stored(&store, &names, &[digest]).is_ok());
    assert!(policy(vec![Signer::new().key()]).check_stored(&store, &names, &[digest]).is_err());
}

#[test]
fn patterns_name_repositories_with_their_registry() {
    for good in ["*", "registry.example/*", "registry.example:5000/a/b", "registry.example/a/*"] {
        assert!(good.parse::<Pattern>().is_ok(), "{good}");
    }
    for bad in ["", "/*", "app", "registry.example/a:1", "registry.example/a*", "registry.example/*/a"] {
        assert!(bad.parse::<Pattern>().is_err(), "{bad}");
    }
    assert!("*".parse::<Pattern>().unwrap().matches(&name("registry.example/a")));
    assert!(!"*".parse::<Pattern>().unwrap().matches(&name("a")));
}

#[test]
fn only_keys_of_the_one_curve_are_taken() {
    let rsa = "-----BEGIN PUBLIC KEY-----\nMFwwDQYJKoZIhvcNAQEBBQADSwAwSAJBAA==\n-----END PUBLIC KEY-----\n";
    assert_eq!(Key::from_pem(rsa).unwrap_err(), BadKey::Kind);
    assert_eq!(Key::from_pem("-----BEGIN PUBLIC KEY-----\n!\n").unwrap_err(), BadKey::Pem);
}

impl Signature {
    fn to_line_signature(&self) -> String {
        serde_json::to_value(self.to_line()).unwrap()["Base64Signature"].as_str().unwrap().to_owned()
    }
}

proptest! {
    #[test]
    fn nothing_signed_panics(text in "\\PC{0,200}", der in prop::collection::vec(any::<u8>(), 0..100)) {
        let _ = Key::from_pem(&text);
        let _ = text.parse::<Pattern>();
        let signature = Signature::new(text.into_bytes(), &BASE64.encode(&der)).unwrap();
        prop_assert!(signature.is_of(&[Signer::new().key()], &[Digest::of(b"")]).is_err());
    }
}
