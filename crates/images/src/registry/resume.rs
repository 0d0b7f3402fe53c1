//! Whether a download goes on where it broke off: what the answer to a request for a range means (RFC 9110, section 14).
//! Pure.

/// What the answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// What comes follows what is there.
    GoesOn,
    /// What comes is the whole from its beginning.
    StartsOver,
    /// The range is none; the whole has to be asked for.
    AskForAll,
    /// It is not what was asked for.
    Lies(&'static str),
    /// It is no content at all: judge the status.
    Refuses,
}

/// What an answer says of itself.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Said<'a> {
    pub(super) status: u16,
    pub(super) range: Option<&'a str>,
    pub(super) length: Option<&'a str>,
    pub(super) encoding: Option<&'a str>,
}

/// What an answer means to somebody who has `have` bytes of `size`.
pub(super) fn judge(said: Said<'_>, have: u64, size: u64) -> Meaning {
    let length: Option<u64> = said.length.and_then(|text| text.trim().parse().ok());
    if matches!(said.status, 200 | 206)
        && said.encoding.is_some_and(|coding| !coding.trim().eq_ignore_ascii_case("identity"))
    {
        return Meaning::Lies("it is encoded, although that was not asked for");
    }
    match said.status {
        200 if length.is_some_and(|length| length != size) => Meaning::Lies("it has another length"),
        200 => Meaning::StartsOver,
        206 if have == 0 => Meaning::Lies("it is a part, although the whole was asked for"),
        206 => match said.range.and_then(range) {
            Some((start, _, _)) if start != have => Meaning::AskForAll,
            Some((_, _, Some(total))) if total != size => Meaning::Lies("it has another length"),
            Some((_, end, _)) if end >= size => Meaning::Lies("it has another length"),
            Some(_) => Meaning::GoesOn,
            None => Meaning::AskForAll,
        },
        416 if have > 0 => Meaning::AskForAll,
        _ => Meaning::Refuses,
    }
}

/// Reads `bytes 5-9/10`; the total may be `*`.
fn range(text: &str) -> Option<(u64, u64, Option<u64>)> {
    let (unit, rest) = text.trim().split_once(' ')?;
    let (span, total) = rest.trim().split_once('/')?;
    let (start, end) = span.split_once('-')?;
    let number = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten()
    };
    let (start, end) = (number(start)?, number(end)?);
    let total = if total == "*" { None } else { Some(number(total)?) };
    (unit.eq_ignore_ascii_case("bytes") && start <= end).then_some((start, end, total))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part<'a>(range: &'a str) -> Said<'a> {
        Said { status: 206, range: Some(range), ..Said::default() }
    }

    fn whole<'a>(length: &'a str) -> Said<'a> {
        Said { status: 200, length: Some(length), ..Said::default() }
    }

    #[test]
    fn a_part_that_follows_goes_on() {
        assert_eq!(judge(part("bytes 5-9/10"), 5, 10), Meaning::GoesOn);
        assert_eq!(judge(part("bytes 5-7/*"), 5, 10), Meaning::GoesOn);
    }

    #[test]
    fn a_part_of_elsewhere_is_not_put_behind() {
        assert_eq!(judge(part("bytes 4-9/10"), 5, 10), Meaning::AskForAll);
        assert_eq!(judge(part("5-9"), 5, 10), Meaning::AskForAll);
        assert_eq!(judge(Said { status: 206, ..Said::default() }, 5, 10), Meaning::AskForAll);
        assert_eq!(judge(Said { status: 416, ..Said::default() }, 5, 10), Meaning::AskForAll);
    }

    #[test]
    fn a_server_that_knows_no_ranges_starts_over() {
        assert_eq!(judge(whole("10"), 5, 10), Meaning::StartsOver);
        assert_eq!(judge(Said { status: 200, ..Said::default() }, 0, 10), Meaning::StartsOver);
    }

    #[test]
    fn another_length_is_a_lie() {
        let lie = Meaning::Lies("it has another length");
        assert_eq!(judge(whole("11"), 0, 10), lie);
        assert_eq!(judge(part("bytes 5-9/11"), 5, 10), lie);
        assert_eq!(judge(part("bytes 5-10/*"), 5, 10), lie);
        let encoded = Said { encoding: Some("gzip"), ..whole("10") };
        assert!(matches!(judge(encoded, 0, 10), Meaning::Lies(_)));
    }

    #[test]
    fn an_error_is_left_to_be_judged() {
        for status in [401, 404, 416, 500] {
            assert_eq!(judge(Said { status, ..Said::default() }, 0, 10), Meaning::Refuses);
        }
    }

    proptest! {
        #[test]
        fn only_what_follows_is_put_behind(
            text in "bytes [0-9]{0,3}-[0-9]{0,20}/([0-9]{0,20}|\\*)|\\PC{0,20}",
            have in 1u64..500,
            more in 1u64..500,
        ) {
            let size = have + more;
            if judge(part(&text), have, size) == Meaning::GoesOn {
                let (start, end, total) = range(&text).unwrap();
                prop_assert!(start == have && end < size && total.is_none_or(|total| total == size));
            }
        }
    }
}
