"""Where a run of many ranks and steps diverges first, from the results of its tasks."""

from run_results import make_collective, make_finding, make_parameter, make_task

from dumpdiff.model.inheritance import Inheritance
from dumpdiff.model.run_result import RunResult, TaskResult
from dumpdiff.reports.runs.summary import format_headline
from dumpdiff.run_divergence import locate_run


def locate(*tasks: TaskResult, unpaired: tuple[str, ...] = ()) -> RunResult:
    return locate_run("target", "reference", tasks, unpaired=unpaired)


def test_a_run_is_aligned_only_if_every_task_is():
    assert locate(make_task(0), make_task(1)).verdict == "aligned"

    not_read = make_task(1, verdict="inconclusive", problem="damaged")
    assert locate(make_task(0), not_read).verdict == "inconclusive"
    assert locate(make_task(0), not_read).notes == (
        "rank 1, step 0: could not be compared: damaged",
    )

    assert locate(make_task(0), make_task(1, verdict="inconclusive")).verdict == "inconclusive"
    assert locate(make_task(0), unpaired=("the reference has no rank 1",)).verdict == "inconclusive"


def test_a_received_error_belongs_to_the_rank_that_it_came_from():
    faulty = make_task(
        1,
        make_finding("linear"),
        positions=(5,),
        collectives=(make_collective("all_reduce.3", 6, "propagated", "propagated"),),
    )
    receiving = make_task(
        0,
        make_finding("all_reduce.7"),
        positions=(6,),
        collectives=(make_collective("all_reduce.7", 6, "agreeing", "introduced"),),
    )

    run = locate(receiving, faulty)

    (finding,) = run.findings
    assert (finding.ranks, finding.place) == ((1,), "rank 1 (tp 1), step 0")
    assert [(r.ranks, r.kind, r.group) for r in finding.receptions] == [
        ((0,), "all_reduce", "group tp")
    ]
    assert format_headline(run) == (
        "diverged: rank 1 (tp 1), step 0: linear differs; "
        "rank 0 receives it through all_reduce of group tp"
    )


def test_a_collective_whose_inputs_all_agree_is_itself_the_finding_of_its_ranks():
    tasks = [
        make_task(
            rank,
            make_finding("all_reduce.0"),
            collectives=(make_collective("all_reduce.0", 10, "agreeing", "introduced"),),
        )
        for rank in (0, 1)
    ]

    (finding,) = locate(*tasks).findings

    assert finding.ranks == (0, 1)
    assert finding.receptions == ()


def test_an_error_is_followed_through_send_and_receive():
    transfer = {"kind": "recv", "members": (), "group": "", "group_kind": "pp"}
    sender = make_task(
        0,
        make_finding("mul"),
        positions=(3,),
        collectives=(
            make_collective("send.0", 9, "propagated", "", **(transfer | {"kind": "send"}), peer=1),
        ),
    )
    receiver = make_task(
        1,
        make_finding("recv.0"),
        positions=(0,),
        collectives=(make_collective("recv.0", 0, "", "introduced", **transfer, peer=0),),
    )

    (finding,) = locate(sender, receiver).findings

    assert finding.ranks == (0,)
    assert finding.title == "mul differs"
    assert [(r.ranks, r.kind) for r in finding.receptions] == [((1,), "recv")]


def test_a_rank_that_gives_a_wrong_value_is_named_without_a_finding_of_its_own():
    giver = make_task(
        1, collectives=(make_collective("all_reduce.0", 4, "propagated", "propagated"),)
    )
    receiver = make_task(
        0,
        make_finding("all_reduce.0"),
        collectives=(make_collective("all_reduce.0", 10, "agreeing", "introduced"),),
    )

    (finding,) = locate(receiver, giver).findings

    assert finding.ranks == (1,)
    assert finding.title == (
        "what it gives to all_reduce (all_reduce.0) differs, and nothing that was compared before "
        "it does"
    )


def test_weights_that_differ_when_a_step_begins_belong_to_the_step_before():
    first = make_task(0, make_finding("linear"), parameters=(make_parameter(),))
    later = make_task(
        0, make_finding("weight", kind="parameter"), step=1,
        parameters=(make_parameter(weight="introduced"),),
    )  # fmt: skip

    run = locate(first, later)

    assert [(finding.step, finding.kind) for finding in run.findings] == [(0, "introduced")]


def test_weights_that_a_step_without_a_difference_left_are_a_finding_of_its_update():
    """A learning rate that changes in step 1 of 0 to 2 shows in the weights of step 2."""
    agreeing = [make_task(0, step=step, parameters=(make_parameter(),)) for step in (0, 1)]
    later = make_task(
        0, make_finding("weight", kind="parameter"), step=2,
        parameters=(make_parameter(weight="introduced"),),
    )  # fmt: skip

    run = locate(*agreeing, later)

    (finding,) = run.findings
    assert (run.verdict, finding.kind, finding.step) == ("diverged", "update", 1)
    assert finding.title == (
        "the update of step 1: layers.0.weight agree before it, gradients agree, and they differ "
        "at the beginning of step 2"
    )


def test_the_noise_that_a_step_was_allowed_to_inherit_is_said():
    first = make_task(0, parameters=(make_parameter(update="agreeing", update_error=6e-6),))
    later = make_task(0, step=1, inheritance=Inheritance({"layers.0.weight": 1.2e-5}, 6e-6))

    run = locate(first, later)

    assert run.verdict == "aligned"
    assert run.notes == (
        "step 1: when it begins, weights differ by up to 6.0e-6, which is no more than the noise "
        "that the step before left, and was allowed",
    )


def test_an_error_of_a_step_whose_weights_agree_is_never_explained_by_them():
    """However small it is: the step before left nothing that could explain it."""
    first = make_task(0, parameters=(make_parameter(),))
    later = make_task(
        0, make_finding("mul", metrics={"error": 1e-7}), step=1, parameters=(make_parameter(),)
    )

    run = locate(first, later)

    assert run.verdict == "diverged"
    assert [finding.step for finding in run.findings] == [1]


def test_the_same_finding_in_several_steps_is_one():
    tasks = [make_task(0, make_finding("mul"), step=step) for step in (0, 1, 2)]

    (finding,) = locate(*tasks).findings

    assert (finding.step, finding.steps) == (0, (0, 1, 2))
    assert format_headline(locate(*tasks)).endswith("again at steps 1 and 2")
