//! `airlock run`: streams, exit codes, signals, environment, identity.

use airlock_tests::World;

#[test]
fn a_program_runs_and_its_output_is_its_own() {
    let world = World::new();

    let output = world.sh([], "echo out; echo err >&2; exit 7").run();

    assert_eq!((output.code, output.stdout.as_str(), output.stderr.as_str()), (7, "out\n", "err\n"));
}
