use super::*;
use airlock_protocol::secret::{From, Place};
use proptest::prelude::*;

fn secret(name: &str, placeholder: &str, hosts: &[&str]) -> Secret {
    Secret {
        name: name.into(),
        from: From::Env(name.into()),
        placeholder: placeholder.into(),
        hosts: hosts.iter().map(ToString::to_string).collect(),
        methods: Vec::new(),
        paths: Vec::new(),
        places: vec![Place::Header, Place::Basic],
        use_as: Use::Plain,
    }
}

fn values(pairs: &[(&str, &str)]) -> Values {
    Values(pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect())
}

/// Numbers that look random and are the same each time.
fn dice(seed: u64) -> impl FnMut(&mut [u8]) {
    let mut state = seed;
    move |bytes| {
        for byte in bytes {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (state >> 33).to_le_bytes()[0];
        }
    }
}

fn asked<'a>(target: &'a Target, method: &'a str, path: &'a str) -> Request<'a> {
    Request { target, method, path, is_verified: true }
}

#[test]
fn a_placeholder_keeps_prefix_shape_and_length() {
    let made = |value: &str| placeholder(value, dice(1)).unwrap();
    for (value, pattern) in [
        ("sk-ant-api03-AbCd_efgh-ijKLmnopQRstuvWXyz0123456789AbCdefghijklmnopqrstuvwxyz", "sk-ant-api03-"),
        ("ghp_0123456789abcdefghijABCDEFGHIJ012345", "ghp_"),
        ("github_pat_11ABCDEFG0abcdefghijkl_0123456789", "github_pat_"),
        ("glpat-abcdefghijklmnopqrst", "glpat-"),
        ("AKIAIOSFODNN7EXAMPLE", "AKIA"),
        (
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
            "eyJ",
        ),
        ("0f8fad5b-d9cb-469f-a165-70867728950e", ""),
        ("p@ss word! with $ymbols", ""),
        ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""),
        ("c2VjcmV0IHZhbHVlIQ==", ""),
    ] {
        let made = made(value);
        assert_eq!(made.len(), value.len(), "{made}");
        assert!(made.starts_with(pattern), "{made}");
        assert_ne!(made, value);
    }
    assert_eq!(made("0f8fad5b-d9cb-469f-a165-70867728950e").matches('-').count(), 4);
    assert!(made("c2VjcmV0IHZhbHVlIQ==").ends_with("=="));
    assert!(
        made("AKIAIOSFODNN7EXAMPLE").bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
    );
    assert!(made("12345678").bytes().all(|byte| byte.is_ascii_digit()));
}

#[test]
fn a_value_that_could_break_a_header_is_refused() {
    assert_eq!(check("line\r\nX-Other: 1"), Err(BadValue::Control("a line end")));
    assert_eq!(check("line\nline"), Err(BadValue::Control("a line end")));
    assert_eq!(check("with\0nul-in-it"), Err(BadValue::Control("a NUL")));
    assert_eq!(check("short"), Err(BadValue::Short(5)));
    assert_eq!(check(&"x".repeat(9000)), Err(BadValue::Long(9000)));
}

#[test]
fn a_secret_goes_only_where_it_is_bound() {
    let mut spec = secret("KEY", "sk-placeholder0000", &["api.example.com", "*.svc.example.com"]);
    spec.methods = vec!["POST".into()];
    spec.paths = vec!["/v1/**".into()];
    let secrets = Secrets::new(&[spec], &values(&[("KEY", "sk-realrealreal111")])).unwrap();
    let bound = secrets.find("KEY").unwrap();
    let api: Target = "api.example.com".parse().unwrap();
    let deep: Target = "a.svc.example.com".parse().unwrap();

    assert_eq!(bound.may_stand(&asked(&api, "POST", "/v1/x"), Place::Header), Ok(()));
    assert_eq!(bound.may_stand(&asked(&deep, "POST", "/v1/x"), Place::Basic), Ok(()));
    assert_eq!(
        bound.may_stand(&asked(&api, "POST", "/v1/x"), Place::Body),
        Err(Misplaced::Place("the body"))
    );
    assert_eq!(bound.may_go(&asked(&api, "GET", "/v1/x")), Err(Misplaced::Method));
    assert_eq!(bound.may_go(&asked(&api, "POST", "/v2/x")), Err(Misplaced::Path));
    let plain = Request { is_verified: false, ..asked(&api, "POST", "/v1/x") };
    assert_eq!(bound.may_go(&plain), Err(Misplaced::Unverified));
    for evil in ["evil.test", "api.example.com.evil.test", "svc.example.com", "xapi.example.com"] {
        let evil: Target = evil.parse().unwrap();
        assert_eq!(bound.may_go(&asked(&evil, "POST", "/v1/x")), Err(Misplaced::Host));
    }
    assert!(secrets.wants(&api, 443) && !secrets.wants(&api, 22));
}

#[test]
fn a_rotated_value_is_used_at_once_and_the_old_one_is_remembered() {
    let spec = secret("KEY", "sk-placeholder0000", &["api.example.com"]);
    let secrets = Secrets::new(&[spec], &values(&[("KEY", "sk-realrealreal111")])).unwrap();

    secrets.set(&values(&[("KEY", "sk-realrealreal222")])).unwrap();

    let bound = secrets.find("KEY").unwrap();
    assert_eq!(bound.value().reveal(), "sk-realrealreal222");
    assert_eq!(
        bound.former().iter().map(|value| value.reveal().to_owned()).collect::<Vec<_>>(),
        ["sk-realrealreal111"]
    );
    assert_eq!(secrets.generation(), 1);
    assert_eq!(secrets.set(&values(&[("OTHER", "12345678")])), Err(BadSecret::Unknown("OTHER".into())));
}

#[test]
fn no_debug_shows_a_value() {
    let spec = secret("KEY", "sk-placeholder0000", &["api.example.com"]);
    let secrets =
        Secrets::new(std::slice::from_ref(&spec), &values(&[("KEY", "sk-realrealreal111")])).unwrap();
    let bad = Secrets::new(&[spec], &values(&[("KEY", "sk-real\nrealreal111")])).unwrap_err();

    assert!(!format!("{secrets:?} {bad:?} {bad}").contains("real1"));
}

#[test]
fn secrets_that_cannot_be_kept_are_refused() {
    let value = values(&[("KEY", "sk-realrealreal111"), ("TWO", "sk-realrealreal222")]);
    let one = secret("KEY", "sk-placeholder0000", &["api.example.com"]);
    let refused = |secrets: &[Secret]| Secrets::new(secrets, &value).unwrap_err();

    assert_eq!(
        refused(&[secret("NO", "sk-placeholder0000", &["a.example"])]),
        BadSecret::Missing("NO".into())
    );
    assert_eq!(refused(&[secret("KEY", "sk-placeholder0000", &[])]), BadSecret::NoHost("KEY".into()));
    assert_eq!(refused(&[one.clone(), one.clone()]), BadSecret::Twice("KEY".into()));
    assert!(matches!(refused(&[secret("KEY", "sk-placeholder0000", &["*"])]), BadSecret::Wide { .. }));
    assert!(matches!(refused(&[secret("KEY", "sk-placeholder0000", &["*.com"])]), BadSecret::Host { .. }));
    assert!(matches!(
        refused(&[secret("KEY", "sk-realrealreal111", &["a.example"])]),
        BadSecret::Placeholder { .. }
    ));
    assert!(matches!(refused(&[secret("KEY", "sk-", &["a.example"])]), BadSecret::Placeholder { .. }));
    let same = secret("TWO", "sk-placeholder0000", &["api.example.com"]);
    assert!(matches!(refused(&[one, same]), BadSecret::Placeholder { .. }));
}

proptest! {
    #[test]
    fn any_value_has_a_placeholder_or_a_reason(value in ".{0,80}", seed: u64) {
        match placeholder(&value, dice(seed)) {
            Ok(made) => {
                prop_assert_eq!(made.len(), value.len());
                prop_assert!(made.bytes().all(|byte| byte.is_ascii_graphic()));
            }
            Err(why) => prop_assert_eq!(check(&value), Err(why)),
        }
    }

    #[test]
    fn a_long_value_gets_192_random_bits(value in "[a-zA-Z0-9]{38,80}", one: u64, other: u64) {
        prop_assume!(one != other);
        let (one, other) = (placeholder(&value, dice(one)).unwrap(), placeholder(&value, dice(other)).unwrap());
        let different = one.bytes().zip(other.bytes()).filter(|(one, other)| one != other).count();
        prop_assert!(different > 20, "{} {}", one, other);
    }
}
