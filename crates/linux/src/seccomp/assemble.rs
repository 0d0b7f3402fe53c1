//! Turns verdicts by number into a program for the kernel's classic BPF.
//!
//! A binary search over runs of equal verdicts: about eight comparisons for any call. Arguments are loaded only
//! behind the search, in the calls that need it, so the kernel can prove for all the others that they are
//! always allowed and answers them from a bitmap without running the program at all (seccomp_cache_prepare,
//! Linux 5.11).

use libc::{c_int, c_long, sock_filter};

use super::allow::Verdict;

/// The verdicts by number; a call beyond the end does not exist for us.
pub(super) type Table = [Verdict; CALLS];

/// More than the highest number of any call in the list.
pub(super) const CALLS: usize = 512;

#[cfg(target_arch = "x86_64")]
pub(super) const NATIVE: u32 = 0xc000_003e; // AUDIT_ARCH_X86_64
#[cfg(target_arch = "aarch64")]
pub(super) const NATIVE: u32 = 0xc000_00b7; // AUDIT_ARCH_AARCH64

pub(super) const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
pub(super) const JUMP: u16 = 0x05; // BPF_JMP | BPF_JA
pub(super) const IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
pub(super) const IF_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
pub(super) const IF_ANY_BIT: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
pub(super) const RETURN: u16 = 0x06; // BPF_RET | BPF_K

pub(super) const ALLOW: u32 = 0x7fff_0000; // SECCOMP_RET_ALLOW
pub(super) const KILL: u32 = 0x8000_0000; // SECCOMP_RET_KILL_PROCESS
pub(super) const ERRNO: u32 = 0x0005_0000; // SECCOMP_RET_ERRNO

// Offsets into struct seccomp_data.
pub(super) const NUMBER: u32 = 0;
pub(super) const ARCH: u32 = 4;

/// Flags of open that make a new file, so that its mode counts. O_TMPFILE contains O_DIRECTORY, which does not.
pub(super) const CREATES: u32 = (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u32;

/// The whole program.
///
/// Calls of another architecture (i386 through `int 0x80` or a 32-bit program, 32-bit ARM) end the process with
/// SIGSYS: their numbers mean other calls, and a program that got ENOSYS from its own exit would run on into
/// nowhere. x32 calls have the native architecture and bit 30 in the number, so they lie beyond the table:
/// ENOSYS, as from a kernel without x32.
pub(super) fn assemble(table: &Table) -> Vec<sock_filter> {
    let mut program = Vec::with_capacity(512);
    program.push(plain(LOAD, ARCH));
    program.push(branch(IF_EQUAL, NATIVE, 1, 0));
    program.push(plain(RETURN, KILL));
    program.push(plain(LOAD, NUMBER));
    search(&mut program, &runs(table));
    program
}

/// The offset of the low half of an argument.
pub(super) const fn argument(index: u8) -> u32 {
    let low = if cfg!(target_endian = "big") { 4 } else { 0 };
    16 + 8 * (index as u32) + low
}

/// The place of a call in the table.
pub(super) fn index(call: c_long) -> Option<usize> {
    usize::try_from(call).ok().filter(|index| *index < CALLS)
}

/// Where a run of equal verdicts starts, and the verdict.
type Run = (u32, Verdict);

fn runs(table: &Table) -> Vec<Run> {
    let beyond = Verdict::Errno(libc::ENOSYS);
    let mut runs: Vec<Run> = Vec::with_capacity(256);
    for (start, verdict) in (0u32..).zip(table.iter().copied().chain([beyond])) {
        if runs.last().is_none_or(|(_, last)| *last != verdict) {
            runs.push((start, verdict));
        }
    }
    runs
}

/// Code that finds the verdict of the number in the accumulator. Every jump in it is relative and forward, so
/// code can be put in front of it afterwards.
fn search(program: &mut Vec<sock_filter>, runs: &[Run]) {
    let (lower, upper) = runs.split_at(runs.len() / 2);
    match (lower, upper) {
        ([], [(_, verdict), ..]) => decide(program, *verdict),
        ([_, ..], [(start, _), ..]) => {
            let at = program.len();
            search(program, lower);
            skip_lower(program, at, *start);
            search(program, upper);
        }
        (_, []) => {}
    }
}

/// Puts a comparison in front of what starts at `at`: numbers from `start` on skip all that follows it up to
/// the end.
fn skip_lower(program: &mut Vec<sock_filter>, at: usize, start: u32) {
    let distance = program.len().saturating_sub(at);
    // A conditional jump reaches 255 instructions, a plain one everywhere.
    match (u8::try_from(distance), u32::try_from(distance)) {
        (Ok(near), _) => program.insert(at, branch(IF_AT_LEAST, start, near, 0)),
        (Err(_), far) => {
            program.insert(at, plain(JUMP, far.unwrap_or(u32::MAX)));
            program.insert(at, branch(IF_AT_LEAST, start, 0, 1));
        }
    }
}

/// Code that returns the verdict. The kernel refuses a program in which any path runs past the end, so each
/// form returns on all.
fn decide(program: &mut Vec<sock_filter>, verdict: Verdict) {
    let denied = plain(RETURN, fail(libc::EPERM));
    let allowed = plain(RETURN, ALLOW);
    match verdict {
        Verdict::Allow => program.push(allowed),
        Verdict::Errno(errno) => program.push(plain(RETURN, fail(errno))),
        Verdict::NoBits { arg, mask } => {
            program.extend([plain(LOAD, argument(arg)), branch(IF_ANY_BIT, mask, 0, 1), denied, allowed]);
        }
        Verdict::NoBitsIfCreating { flags, mode, mask } => program.extend([
            plain(LOAD, argument(flags)),
            branch(IF_ANY_BIT, CREATES, 0, 3),
            plain(LOAD, argument(mode)),
            branch(IF_ANY_BIT, mask, 0, 1),
            denied,
            allowed,
        ]),
        Verdict::OneOf { arg, values, errno } => {
            choose(program, (arg, values), [allowed, plain(RETURN, fail(errno))]);
        }
        Verdict::NoneOf { arg, values } => choose(program, (arg, values), [denied, allowed]),
    }
}

/// The first outcome if the argument is one of the values, else the second.
fn choose(program: &mut Vec<sock_filter>, (arg, values): (u8, &[u32]), [hit, miss]: [sock_filter; 2]) {
    program.push(plain(LOAD, argument(arg)));
    for value in values {
        program.extend([branch(IF_EQUAL, *value, 0, 1), hit]);
    }
    program.push(miss);
}

const fn fail(errno: c_int) -> u32 {
    ERRNO | (errno.unsigned_abs() & 0xffff)
}

const fn plain(code: u16, k: u32) -> sock_filter {
    branch(code, k, 0, 0)
}

const fn branch(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::caps::{Cap, CapSet};
    use crate::seccomp::{Filter, Nested, Relax, SetId, verdicts};

    /// What the kernel would do: the classic BPF machine, as far as the program uses it.
    fn interpret(program: &[sock_filter], arch: u32, number: u32, args: [u64; 6]) -> u32 {
        let mut accumulator = 0;
        let mut at = 0;
        loop {
            let step = program[at];
            at += 1;
            let jump = |taken: bool| usize::from(if taken { step.jt } else { step.jf });
            match step.code {
                LOAD => accumulator = load(step.k, arch, number, args),
                JUMP => at += usize::try_from(step.k).unwrap(),
                IF_EQUAL => at += jump(accumulator == step.k),
                IF_AT_LEAST => at += jump(accumulator >= step.k),
                IF_ANY_BIT => at += jump(accumulator & step.k != 0),
                RETURN => return step.k,
                other => panic!("unknown instruction {other:#x}"),
            }
        }
    }

    fn load(offset: u32, arch: u32, number: u32, args: [u64; 6]) -> u32 {
        match offset {
            NUMBER => number,
            ARCH => arch,
            _ => {
                let index = (0..6).find(|index| argument(*index) == offset).expect("offset of an argument");
                u32::try_from(args[usize::from(index)] & 0xffff_ffff).unwrap()
            }
        }
    }

    /// What the verdict says, written down a second time.
    fn expected(verdict: Verdict, args: [u64; 6]) -> u32 {
        let low = |arg: u8| u32::try_from(args[usize::from(arg)] & 0xffff_ffff).unwrap();
        let unless = |refused: bool, errno: i32| if refused { fail(errno) } else { ALLOW };
        match verdict {
            Verdict::Allow => ALLOW,
            Verdict::Errno(errno) => fail(errno),
            Verdict::NoBits { arg, mask } => unless(low(arg) & mask != 0, libc::EPERM),
            Verdict::NoBitsIfCreating { flags, mode, mask } => {
                unless(low(flags) & CREATES != 0 && low(mode) & mask != 0, libc::EPERM)
            }
            Verdict::OneOf { arg, values, errno } => unless(!values.contains(&low(arg)), errno),
            Verdict::NoneOf { arg, values } => unless(values.contains(&low(arg)), libc::EPERM),
        }
    }

    fn relaxes() -> Vec<Relax> {
        let caps = [
            CapSet::EMPTY,
            CapSet::DEFAULT,
            CapSet::DEFAULT.with(Cap::SYS_ADMIN),
            CapSet::DEFAULT.with(Cap::SYS_PTRACE).with(Cap::SYS_NICE),
        ];
        let mut all = Vec::new();
        for caps in caps {
            for nested in [Nested::No, Nested::Yes] {
                for set_id in [SetId::Refused, SetId::Allowed] {
                    all.push(Relax { caps, nested, set_id });
                }
            }
        }
        all
    }

    #[test]
    fn for_every_number_the_program_does_what_the_list_says() {
        for relax in relaxes() {
            let table = verdicts(&relax);
            let program = Filter::compile(&relax).program;
            for (number, verdict) in (0..).zip(table) {
                for args in [[0; 6], [u64::MAX; 6], [0x5412; 6], [0o104_755; 6], [1; 6], [0x1000_0011; 6]] {
                    let action = interpret(&program, NATIVE, number, args);

                    assert_eq!(action, expected(verdict, args), "{relax:?} {number} {args:x?}");
                }
            }
        }
    }

    #[test]
    fn calls_beyond_the_list_and_x32_calls_do_not_exist() {
        let program = Filter::compile(&relaxes()[0]).program;
        let x32 = (0..600).map(|number| number | 0x4000_0000);

        for number in (512..5000).chain(x32).chain([u32::MAX, 0x7fff_ffff, 0x8000_0000]) {
            assert_eq!(interpret(&program, NATIVE, number, [0; 6]), fail(libc::ENOSYS), "{number:#x}");
        }
    }

    #[test]
    fn a_call_of_another_architecture_ends_the_process() {
        let program = Filter::compile(&relaxes()[0]).program;

        for arch in [0x4000_0003 /* i386 */, 0x4000_0028 /* ARM */, 0, u32::MAX] {
            for number in 0..600 {
                assert_eq!(interpret(&program, arch, number, [0; 6]), KILL);
            }
        }
    }

    #[test]
    fn the_program_is_small_enough_for_any_kernel() {
        for relax in relaxes() {
            let len = Filter::compile(&relax).program.len();

            assert!(len < 1000, "{len} instructions, BPF_MAXINSNS is 4096");
        }
    }

    proptest! {
        #[test]
        fn for_any_arguments_the_program_does_what_the_list_says(
            which in 0..relaxes().len(),
            number in prop_oneof![0..512u32, any::<u32>()],
            args in prop::array::uniform6(prop_oneof![
                any::<u64>(),
                0..0x10000u64,
                (0..64u32).prop_map(|bit| 1 << bit),
            ]),
        ) {
            let relax = relaxes()[which];
            let verdict = usize::try_from(number).ok().and_then(|at| verdicts(&relax).get(at).copied());
            let program = Filter::compile(&relax).program;

            let action = interpret(&program, NATIVE, number, args);

            prop_assert_eq!(action, expected(verdict.unwrap_or(Verdict::Errno(libc::ENOSYS)), args));
        }
    }
}
