"""A regressor of a parametric body model in NumPy: sizes, knobs, weights, mesh and batch.

In the manner of HMR (https://arxiv.org/abs/1712.06584) and SPIN
(https://arxiv.org/abs/1909.12828), with a body like SMPL's
(https://doi.org/10.1145/2816795.2818013).

The encoder has three convolutions with ReLU, the first two strided, the last one with a residual,
and the mean over cells. Parameters of a person are behind each other: POSE of rotations of SIX
numbers, AXIS_ANGLES, SHAPE coefficients and CAMERA (scale, x, y). They begin with means; ITERATIONS
times, features and parameters pass fc1 and fc2 with ReLU, and four linear layers whose results are
added to the parameters.

SIX numbers are a matrix (3, 2), whose columns become the first two of a rotation by Gram-Schmidt;
the third one is their cross product. Axis-angles of the last joints, with the angle |axis + TINY|,
become rotations by Rodrigues' formula, as I + sin * K + (1 - cos) * K @ K. The body is

    shaped    template + sum of shape coefficients * directions
    joints    joint regressor * shaped
    posed     shaped + (R - I) of all joints but the first, flat, @ pose directions
    world     (4, 4) of a joint: its parent's @ [R, joint - parent's joint], along the tree
    vertices  sum over joints of skinning weight * world, with the joint at rest taken out, @ posed

Keypoints are joints in world coordinates and vertices MARKERS, taken in the order KEYPOINT_MAP. In
the image they are at scale * ((x, y) + camera's (x, y)), from -1 to 1. The loss is the sum of

    image      IMAGE_WEIGHT * (r^2 * SIGMA^2 / (r^2 + SIGMA^2)) of both coordinates (Geman-McClure)
               times the confidence, summed, divided by the number of keypoints with confidence
    joints     JOINT_WEIGHT * smooth L1 (BETA) of keypoints less the mean of both HIPS, times the
               confidence; mean over keypoints with confidence and coordinates
    rotations  mean square of differences to matrices, over persons with a known body
    edges      EDGE_WEIGHT * mean absolute difference of lengths of EDGES, over such persons
    laplacian  LAPLACIAN_WEIGHT * mean over such persons and vertices of the squared difference of
               Laplacians, which are a vertex less the mean of its neighbours. Lists of NEIGHBOURS
               are padded with vertex 0
    prior      PRIOR_WEIGHT * mean of -log sum of exp(prior.log_weights - |precision^T (a - mean)|^2
               / 2) of the axis-angles a under a mixture of COMPONENTS Gaussians
    shape      SHAPE_WEIGHT * mean over persons of the sum of squares of SHAPE coefficients

Weights are float32, linear (out, in), with bias:

    encoder.0, 1, 2                                     convolutions
    regressor.fc1, fc2, pose, axis_angles, shape, camera
    mean.pose, axis_angles, shape, camera               constants, as all that follow
    body.template (VERTICES, 3), body.shape_directions (VERTICES, 3, SHAPE)
    body.pose_directions (9 * (JOINTS - 1), VERTICES * 3)
    body.joint_regressor (JOINTS, VERTICES), body.skinning (VERTICES, JOINTS)
    prior.means (COMPONENTS, AXIS_ANGLES), prior.precisions (COMPONENTS, AXIS_ANGLES, AXIS_ANGLES),
    the lower factors, and prior.log_weights (COMPONENTS,), with the logarithm of determinants
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

BATCH, COLORS, SIZE, CELLS = 5, 3, 16, 16
CHANNELS, FEATURES, HIDDEN = 12, 20, 32
ITERATIONS = 3
#: Pelvis, left and right hip, spine, left and right knee, neck, left and right arm, jaw.
PARENTS = (-1, 0, 0, 0, 1, 2, 3, 3, 3, 6)
REST = (
    (0.0, 0.0, 0.0),
    (0.1, -0.1, 0.01),
    (-0.1, -0.1, 0.01),
    (0.0, 0.25, -0.03),
    (0.12, -0.5, 0.02),
    (-0.12, -0.5, 0.02),
    (0.0, 0.5, -0.02),
    (0.2, 0.42, -0.03),
    (-0.2, 0.42, -0.03),
    (0.0, 0.58, 0.04),
)
JOINTS, TURNED, SIX = len(PARENTS), 3, 6  #: the last ones are TURNED by axis-angles
MATRICES = JOINTS - TURNED
POSE, AXIS_ANGLES, SHAPE, CAMERA = MATRICES * SIX, TURNED * 3, 5, 3
PARAMETERS = (POSE, AXIS_ANGLES, SHAPE, CAMERA)
STATE = sum(PARAMETERS)
POSE_FEATURES = 9 * (JOINTS - 1)
RING = 5  #: vertices around a joint
VERTICES = JOINTS * RING
MARKERS = (46, 21, 28)  #: vertices of nose, left and right foot
#: Feet, knees, hips, arms, neck, nose and jaw, among joints and then markers.
KEYPOINT_MAP = (12, 5, 2, 1, 4, 11, 8, 7, 6, 10, 9)
KEYPOINTS = len(KEYPOINT_MAP)
HIPS = (2, 3)  #: among keypoints
MIRRORED = (5, 4, 3, 2, 1, 0, 7, 6, 8, 9, 10)  #: left for right
COMPONENTS = 3
TINY = 1e-8
SIGMA, BETA = 0.4, 0.1
IMAGE_WEIGHT, JOINT_WEIGHT, EDGE_WEIGHT, LAPLACIAN_WEIGHT = 5.0, 4.0, 4.0, 20.0
PRIOR_WEIGHT, SHAPE_WEIGHT = 0.02, 0.05
SEED = 1712


def _list_edges() -> np.ndarray:
    """Return pairs of vertices: around each joint, and to the ring of its parent."""
    edges = []
    for joint, parent in enumerate(PARENTS):
        for n in range(RING):
            edges.append((joint * RING + n, joint * RING + (n + 1) % RING))
            if parent >= 0 and n % 2 == 0:
                edges.append((parent * RING + n, joint * RING + n))
    return np.array(edges, np.int32)


def _list_neighbours() -> tuple[np.ndarray, np.ndarray]:
    """Return neighbours of vertices, padded, and their numbers."""
    lists: list[list[int]] = [[] for _ in range(VERTICES)]
    for first, second in EDGES.tolist():
        lists[first].append(second)
        lists[second].append(first)
    counts = np.array([len(vertices) for vertices in lists], np.int32)
    neighbours = np.zeros((VERTICES, counts.max()), np.int32)
    for vertex, vertices in enumerate(lists):
        neighbours[vertex, : len(vertices)] = vertices
    return neighbours, counts


EDGES = _list_edges()
NEIGHBOURS, NEIGHBOUR_COUNTS = _list_neighbours()


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): one layer for all corrections, rotations
    #: and translations apart, losses in plain arithmetic; 'fused' (PyTorch): other names, joints of
    #: a depth in the tree at once, one blending of all directions
    variant: str = ""
    are_axes_rows: bool = False  #: of a matrix by Gram-Schmidt; MindSpore only
    is_padding_averaged: bool = False  #: as neighbours; MindSpore only
    is_state_detached: bool = False  #: at the begin of an iteration; MindSpore only
    is_robust_unscaled: bool = False  #: without SIGMA^2 as a factor; MindSpore only
    is_camera_shift_unscaled: bool = False  #: added behind the scale; PyTorch only
    are_markers_from_one: bool = False  #: their numbers; PyTorch only
    is_mean_of_all: bool = False  #: of rotations, over all persons; PyTorch only
    is_square_gradient_whole: bool = False  #: twice that of half a square; PyTorch only
    are_keypoints_mirrored: bool = False  #: those in the image
    are_colors_reversed: bool = False

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return images, keypoints in the image and in space, and bodies.

        Images are float32 (BATCH, COLORS, SIZE, SIZE), normalized. Keypoints are float32 (BATCH,
        KEYPOINTS, 3), x, y and confidence, and (BATCH, KEYPOINTS, 4). Axis-angles of all joints are
        float32 (BATCH, JOINTS, 3), vertices float32 (BATCH, VERTICES, 3), zeros if the body is not
        known; ones of those that are, float32 (BATCH,).
        """
        rng = np.random.default_rng(SEED + 1)
        weights = draw_weights()
        axis_angles = 0.35 * rng.standard_normal((BATCH, JOINTS, 3))
        vertices, joints = pose_body(
            weights, axis_angles, 0.8 * rng.standard_normal((BATCH, SHAPE))
        )
        points = np.concatenate([joints, vertices[:, list(MARKERS)]], axis=1)
        points = points[:, list(KEYPOINT_MAP)]

        scale = rng.uniform(0.8, 1.1, (BATCH, 1, 1))
        flat = scale * (points[..., :2] + 0.1 * rng.standard_normal((BATCH, 1, 2)))
        flat += 0.03 * rng.standard_normal(flat.shape)
        seen = rng.uniform(0.3, 1, (2, BATCH, KEYPOINTS, 1))
        for n in range(BATCH):
            for confidence, count in zip(seen[:, n], (2, 3), strict=True):
                confidence[rng.permutation(KEYPOINTS)[:count]] = 0
        seen[1, 1] = 0  # a person without coordinates in space
        # the annotated origin is another one
        space = points + 0.2 * rng.standard_normal((BATCH, 1, 3))
        space += 0.02 * rng.standard_normal(space.shape)
        keypoints = np.concatenate([np.where(seen[0] > 0, flat, 0), seen[0]], axis=-1)
        if self.are_keypoints_mirrored:
            keypoints = keypoints[:, list(MIRRORED)]

        images = 0.5 * rng.standard_normal((BATCH, COLORS, SIZE, SIZE))
        images += rng.standard_normal((BATCH, COLORS, 1, 1))
        grid = np.linspace(-1, 1, SIZE)
        for n, places in enumerate(flat):
            for x, y in places:
                spot = np.exp(-((grid - x) ** 2 + (grid[:, None] + y) ** 2) / 0.02)
                images[n] += spot * rng.standard_normal((COLORS, 1, 1))
        if self.are_colors_reversed:
            images = images[:, ::-1]

        known = np.array([1, 0, 1, 1, 0])
        return tuple(
            np.ascontiguousarray(values, dtype=np.float32)
            for values in (
                images,
                keypoints,
                np.concatenate([np.where(seen[1] > 0, space, 0), seen[1]], axis=-1),
                axis_angles * known[:, None, None],
                vertices * known[:, None, None],
                known,
            )
        )


def turn(axis_angles: np.ndarray) -> np.ndarray:
    """Return rotations of axis-angles."""
    angles = np.linalg.norm(axis_angles, axis=-1)[..., None, None]
    x, y, z = np.moveaxis(axis_angles, -1, 0)
    zero = np.zeros_like(x)
    skew = np.stack([zero, -z, y, z, zero, -x, -y, x, zero], axis=-1)
    skew = skew.reshape(*x.shape, 3, 3) / angles
    return np.eye(3) + np.sin(angles) * skew + (1 - np.cos(angles)) * skew @ skew


def pose_body(
    weights: Mapping[str, np.ndarray], axis_angles: np.ndarray, shape: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return vertices and joints of persons."""
    rotations = turn(axis_angles)
    shaped = weights["body.template"] + np.einsum(
        "bs,vcs->bvc", shape, weights["body.shape_directions"]
    )
    rest = weights["body.joint_regressor"] @ shaped
    features = (rotations[:, 1:] - np.eye(3)).reshape(len(shape), -1)
    posed = shaped + (features @ weights["body.pose_directions"]).reshape(shaped.shape)
    turns, joints = [rotations[:, 0]], [rest[:, 0]]
    for joint, parent in list(enumerate(PARENTS))[1:]:
        bone = (rest[:, joint] - rest[:, parent])[..., None]
        joints.append(joints[parent] + (turns[parent] @ bone)[..., 0])
        turns.append(turns[parent] @ rotations[:, joint])
    world, places = np.stack(turns, axis=1), np.stack(joints, axis=1)
    moved = np.einsum("bjcd,bvjd->bvjc", world, posed[:, :, None] - rest[:, None])
    moved += places[:, None]
    return np.einsum("vj,bvjc->bvc", weights["body.skinning"], moved), places


def draw_weights() -> Weights:
    """Return the weights of the clean model."""
    weights = Weights(SEED)
    weights.add_linear("encoder.0", CHANNELS, COLORS, 3, 3)
    weights.add_linear("encoder.1", FEATURES, CHANNELS, 3, 3)
    weights.add_linear("encoder.2", FEATURES, FEATURES, 3, 3)
    for n in range(3):
        weights[f"encoder.{n}.weight"] *= np.float32(1.5)
    weights.add_linear("regressor.fc1", HIDDEN, FEATURES + STATE)
    weights.add_linear("regressor.fc2", HIDDEN, HIDDEN)
    for name, length in zip(("pose", "axis_angles", "shape", "camera"), PARAMETERS, strict=True):
        weights.add_matrix(f"regressor.{name}", length, HIDDEN)
        weights[f"regressor.{name}.weight"] *= np.float32(0.25)
        weights.add_bias(f"regressor.{name}", length)
        weights[f"regressor.{name}.bias"] *= np.float32(0.3)

    rng = weights.rng
    mean_turns = turn(0.3 * rng.standard_normal((MATRICES, 3)))
    arrays = {
        "mean.pose": mean_turns[..., :2].reshape(POSE),
        "mean.axis_angles": 0.4 * rng.standard_normal(AXIS_ANGLES),
        "mean.shape": 0.3 * rng.standard_normal(SHAPE),
        "mean.camera": np.array([0.9, 0.05, -0.1]),
    }
    around = 0.06 * rng.standard_normal((JOINTS, RING, 3))
    for joint in range(JOINTS):
        angles = 2 * np.pi * (np.arange(RING) + 0.3 * joint) / RING
        ring = np.stack([np.cos(angles), 0.4 * np.sin(2 * angles), np.sin(angles)], axis=-1)
        around[joint] = 0.08 * ring + 0.3 * around[joint]
    template = np.array(REST)[:, None] + around
    arrays["body.template"] = template.reshape(VERTICES, 3)
    arrays["body.shape_directions"] = 0.03 * rng.standard_normal((VERTICES, 3, SHAPE))
    arrays["body.pose_directions"] = 0.02 * rng.standard_normal((POSE_FEATURES, VERTICES * 3))

    regressor = np.repeat(np.eye(JOINTS), RING, axis=1) * rng.uniform(0.5, 1, VERTICES)
    regressor += 0.02 * rng.uniform(0, 1, (JOINTS, VERTICES))
    arrays["body.joint_regressor"] = regressor / regressor.sum(axis=1, keepdims=True)
    skinning = np.repeat(np.eye(JOINTS), RING, axis=0)
    for joint, parent in list(enumerate(PARENTS))[1:]:
        rows = slice(joint * RING, (joint + 1) * RING)
        skinning[rows, parent] = rng.uniform(0.2, 0.6, RING)
    skinning += 0.02 * rng.uniform(0, 1, (VERTICES, JOINTS))
    arrays["body.skinning"] = skinning / skinning.sum(axis=1, keepdims=True)

    factors = np.tril(0.4 * rng.standard_normal((COMPONENTS, AXIS_ANGLES, AXIS_ANGLES)), -1)
    diagonals = rng.uniform(0.8, 1.6, (COMPONENTS, AXIS_ANGLES))
    factors += diagonals[:, None] * np.eye(AXIS_ANGLES)
    arrays["prior.means"] = 0.4 * rng.standard_normal((COMPONENTS, AXIS_ANGLES))
    arrays["prior.precisions"] = factors
    shares = np.array([0.5, 0.3, 0.2])
    arrays["prior.log_weights"] = np.log(shares) + np.log(diagonals).sum(axis=1)
    weights.update({name: values.astype(np.float32) for name, values in arrays.items()})
    return weights


def build_clean() -> Model:
    """Return the model without a fault."""
    return Model("bodymesh", draw_weights())
