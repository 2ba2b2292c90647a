"""A regressor of a parametric body model in MindSpore for graph mode.

Variant 'written': one layer for all corrections, rotations and translations of the tree apart,
joints of the template and its directions computed once, losses in plain arithmetic.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from families.bodymesh.architecture import (
    AXIS_ANGLES,
    BATCH,
    BETA,
    CELLS,
    COMPONENTS,
    EDGE_WEIGHT,
    EDGES,
    FEATURES,
    HIPS,
    IMAGE_WEIGHT,
    ITERATIONS,
    JOINT_WEIGHT,
    JOINTS,
    KEYPOINT_MAP,
    LAPLACIAN_WEIGHT,
    MARKERS,
    MATRICES,
    NEIGHBOUR_COUNTS,
    NEIGHBOURS,
    PARENTS,
    POSE,
    POSE_FEATURES,
    PRIOR_WEIGHT,
    SHAPE,
    SHAPE_WEIGHT,
    SIGMA,
    STATE,
    TINY,
    TURNED,
    VERTICES,
    Model,
)

LEFT_HIP, RIGHT_HIP = HIPS[::-1]


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return WrittenLoss(model) if model.variant == "written" else BodyLoss(model)


def read(model: Model, *names: str) -> Tensor:
    """Return a weight, or several ones behind each other."""
    return Tensor(np.concatenate([model.weights[name] for name in names]))


def build_buffer(model: Model, *names: str) -> Parameter:
    """Return a constant of the body model, which is saved but not trained."""
    return Parameter(read(model, *names), requires_grad=False)


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at a path."""
    weight = read(model, f"{path}.weight")
    return nn.Dense(
        weight.shape[1],
        weight.shape[0],
        weight_init=weight,
        bias_init=read(model, f"{path}.bias"),
    )


def build_conv(model: Model, path: str, stride: int) -> nn.Conv2d:
    """Return the convolution at a path."""
    weight = read(model, f"{path}.weight")
    return nn.Conv2d(
        weight.shape[1],
        weight.shape[0],
        3,
        stride,
        pad_mode="pad",
        padding=1,
        has_bias=True,
        weight_init=weight,
        bias_init=read(model, f"{path}.bias"),
    )


class ImageEncoder(nn.Cell):
    """Features (batch, FEATURES) of images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1 = build_conv(model, "encoder.0", 2)
        self.conv2 = build_conv(model, "encoder.1", 2)
        self.conv3 = build_conv(model, "encoder.2", 1)
        self.relu = nn.ReLU()

    def construct(self, images):
        x = self.relu(self.conv2(self.relu(self.conv1(images))))
        x = x + self.relu(self.conv3(x))
        return x.mean((2, 3))


class IterativeRegressor(nn.Cell):
    """Parameters of the body and the camera, by corrections of means."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.fc1, self.fc2 = (build_dense(model, f"regressor.{name}") for name in ("fc1", "fc2"))
        self.relu, self.dropout = nn.ReLU(), nn.Dropout(p=0.0)
        self.dec_pose = build_dense(model, "regressor.pose")
        self.dec_axis_angle = build_dense(model, "regressor.axis_angles")
        self.dec_shape = build_dense(model, "regressor.shape")
        self.dec_camera = build_dense(model, "regressor.camera")
        self.init_pose = build_buffer(model, "mean.pose")
        self.init_axis_angle = build_buffer(model, "mean.axis_angles")
        self.init_shape = build_buffer(model, "mean.shape")
        self.init_camera = build_buffer(model, "mean.camera")
        self.is_state_detached = model.is_state_detached

    def construct(self, features):
        batch = features.shape[0]
        pose = ops.broadcast_to(self.init_pose, (batch, -1))
        axis_angle = ops.broadcast_to(self.init_axis_angle, (batch, -1))
        shape = ops.broadcast_to(self.init_shape, (batch, -1))
        camera = ops.broadcast_to(self.init_camera, (batch, -1))
        for _ in range(ITERATIONS):
            if self.is_state_detached:
                pose, axis_angle = ops.stop_gradient(pose), ops.stop_gradient(axis_angle)
                shape, camera = ops.stop_gradient(shape), ops.stop_gradient(camera)
            x = ops.concat((features, pose, axis_angle, shape, camera), 1)
            x = self.dropout(self.relu(self.fc1(x)))
            x = self.dropout(self.relu(self.fc2(x)))
            pose = pose + self.dec_pose(x)
            axis_angle = axis_angle + self.dec_axis_angle(x)
            shape = shape + self.dec_shape(x)
            camera = camera + self.dec_camera(x)
        return pose, axis_angle, shape, camera


class GramSchmidt(nn.Cell):
    """Rotations (batch, MATRICES, 3, 3) of six numbers each."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.axis = -2 if model.are_axes_rows else -1

    def normalize(self, x):
        """Return vectors of the length one."""
        return x / ops.norm(x, dim=-1, keepdim=True)

    def construct(self, x):
        x = x.reshape(-1, MATRICES, 3, 2)
        a1, a2 = x[..., 0], x[..., 1]
        b1 = self.normalize(a1)
        b2 = self.normalize(a2 - (b1 * a2).sum(-1, keepdims=True) * b1)
        return ops.stack((b1, b2, ops.cross(b1, b2, -1)), self.axis)


class Rodrigues(nn.Cell):
    """Rotations (batch, joints, 3, 3) of axis-angles (batch, joints, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.eye = Tensor(np.eye(3, dtype=np.float32))

    def construct(self, axis_angle):
        angle = ops.norm(axis_angle + TINY, dim=-1, keepdim=True)
        axis = axis_angle / angle
        angle = angle.expand_dims(-1)
        rx, ry, rz = axis[..., 0], axis[..., 1], axis[..., 2]
        zeros = ops.zeros_like(rx)
        k = ops.stack((zeros, -rz, ry, rz, zeros, -rx, -ry, rx, zeros), -1)
        k = k.reshape(-1, axis_angle.shape[1], 3, 3)
        return self.eye + ops.sin(angle) * k + (1 - ops.cos(angle)) * ops.matmul(k, k)


class BodyModel(nn.Cell):
    """Vertices and joints of rotations (batch, JOINTS, 3, 3) and shape coefficients."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.v_template = build_buffer(model, "body.template")
        self.shapedirs = build_buffer(model, "body.shape_directions")
        self.posedirs = build_buffer(model, "body.pose_directions")
        self.joint_regressor = build_buffer(model, "body.joint_regressor")
        self.lbs_weights = build_buffer(model, "body.skinning")
        self.eye = Tensor(np.eye(3, dtype=np.float32))
        self.last_row = Tensor(np.array([[[0, 0, 0, 1]]], np.float32))
        self.bmm = ops.BatchMatMul()

    def make_transform(self, rotation, translation):
        """Return transforms (batch, 4, 4)."""
        upper = ops.concat((rotation, translation.expand_dims(-1)), -1)
        lower = ops.broadcast_to(self.last_row, (rotation.shape[0], 1, 4))
        return ops.concat((upper, lower), 1)

    def transform_joints(self, rotations, joints):
        """Return world transforms (batch, JOINTS, 4, 4) along the kinematic tree."""
        world = (self.make_transform(rotations[:, 0], joints[:, 0]),)
        for n in range(1, JOINTS):
            parent = PARENTS[n]
            local = self.make_transform(rotations[:, n], joints[:, n] - joints[:, parent])
            world += (self.bmm(world[parent], local),)
        return ops.stack(world, 1)

    def construct(self, rotations, shape):
        batch = shape.shape[0]
        offsets = ops.matmul(shape, self.shapedirs.reshape(-1, SHAPE).swapaxes(0, 1))
        shaped = self.v_template + offsets.reshape(batch, VERTICES, 3)
        joints = ops.matmul(self.joint_regressor, shaped)

        pose_feature = (rotations[:, 1:] - self.eye).reshape(batch, POSE_FEATURES)
        pose_offsets = ops.matmul(pose_feature, self.posedirs).reshape(batch, VERTICES, 3)
        posed = shaped + pose_offsets

        world = self.transform_joints(rotations, joints)
        zeros = ops.zeros((batch, JOINTS, 1), ms.float32)
        at_rest = ops.matmul(world, ops.concat((joints, zeros), -1).expand_dims(-1))
        relative = world - ops.pad(at_rest, (3, 0))
        blended = ops.matmul(self.lbs_weights, relative.reshape(batch, JOINTS, 16))
        blended = blended.reshape(batch, VERTICES, 4, 4)
        homogeneous = ops.concat((posed, ops.ones((batch, VERTICES, 1), ms.float32)), -1)
        vertices = ops.matmul(blended, homogeneous.expand_dims(-1))[:, :, :3, 0]
        return vertices, world[:, :, :3, 3]


class Keypoints(nn.Cell):
    """Keypoints (batch, KEYPOINTS, 3) among joints and vertices."""

    def __init__(self) -> None:
        super().__init__()
        self.vertex_ids = Tensor(np.array(MARKERS, np.int32))
        self.joint_map = Tensor(np.array(KEYPOINT_MAP, np.int32))

    def construct(self, vertices, joints):
        markers = ops.gather(vertices, self.vertex_ids, 1)
        return ops.gather(ops.concat((joints, markers), 1), self.joint_map, 1)


class WeakPerspective(nn.Cell):
    """Keypoints in the image."""

    def construct(self, points, camera):
        camera = camera.expand_dims(1)
        return camera[..., :1] * (points[..., :2] + camera[..., 1:])


class ImageLoss(nn.Cell):
    """Geman-McClure's function of differences in the image."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_robust_unscaled = model.is_robust_unscaled

    def construct(self, projected, keypoints):
        confidence = keypoints[..., 2]
        squares = ops.square(projected - keypoints[..., :2])
        robust = squares / (squares + SIGMA**2)
        if not self.is_robust_unscaled:
            robust = SIGMA**2 * robust
        losses = confidence * robust.sum(-1)
        return losses.sum() / (confidence > 0).astype(ms.float32).sum()


class JointLoss(nn.Cell):
    """Smooth L1 of keypoints less the middle of the hips."""

    def __init__(self) -> None:
        super().__init__()
        self.smooth_l1 = nn.SmoothL1Loss(beta=BETA, reduction="none")

    def align(self, points):
        """Return keypoints with the pelvis in the origin."""
        pelvis = (points[:, LEFT_HIP] + points[:, RIGHT_HIP]) / 2
        return points - pelvis.expand_dims(1)

    def construct(self, points, keypoints):
        confidence = keypoints[..., 3:]
        losses = self.smooth_l1(self.align(points), self.align(keypoints[..., :3]))
        n_seen = (confidence > 0).astype(ms.float32).sum()
        return (confidence * losses).sum() / (3 * n_seen)


class KnownMean(nn.Cell):
    """The mean over persons with a known body, of losses (batch, ...)."""

    def construct(self, losses, is_known):
        losses = losses.reshape(losses.shape[0], -1).mean(1)
        return (losses * is_known).sum() / is_known.sum()


class EdgeLoss(nn.Cell):
    """Absolute differences of lengths of edges."""

    def __init__(self) -> None:
        super().__init__()
        self.starts = Tensor(EDGES[:, 0].copy())
        self.ends = Tensor(EDGES[:, 1].copy())
        self.known_mean = KnownMean()

    def measure(self, vertices):
        """Return lengths (batch, edges)."""
        edges = ops.gather(vertices, self.starts, 1) - ops.gather(vertices, self.ends, 1)
        return ops.norm(edges, dim=-1)

    def construct(self, vertices, targets, is_known):
        losses = ops.abs(self.measure(vertices) - self.measure(targets))
        return self.known_mean(losses, is_known)


class LaplacianLoss(nn.Cell):
    """Squared differences of Laplacians."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.neighbours = Tensor(NEIGHBOURS)
        slots = np.arange(NEIGHBOURS.shape[1])
        is_neighbour = slots < NEIGHBOUR_COUNTS[:, None]
        self.is_neighbour = Tensor(is_neighbour[..., None].astype(np.float32))
        self.counts = Tensor(NEIGHBOUR_COUNTS[:, None].astype(np.float32))
        self.is_padding_averaged = model.is_padding_averaged
        self.known_mean = KnownMean()

    def find_laplacian(self, vertices):
        """Return vertices less the means of their neighbours."""
        near = ops.gather(vertices, self.neighbours, 1)
        if not self.is_padding_averaged:
            near = near * self.is_neighbour
        return vertices - near.sum(2) / self.counts

    def construct(self, vertices, targets, is_known):
        difference = self.find_laplacian(vertices) - self.find_laplacian(targets)
        return self.known_mean(ops.square(difference).sum(-1), is_known)


class MixturePrior(nn.Cell):
    """Minus the logarithm of the density of axis-angles."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.means = build_buffer(model, "prior.means")
        self.precisions = build_buffer(model, "prior.precisions")
        self.log_weights = build_buffer(model, "prior.log_weights")

    def construct(self, axis_angle):
        difference = axis_angle.expand_dims(1) - self.means
        whitened = ops.matmul(difference.expand_dims(2), self.precisions).squeeze(2)
        scores = self.log_weights - 0.5 * ops.square(whitened).sum(-1)
        return -ops.logsumexp(scores, 1).mean()


class BodyLoss(nn.Cell):
    """Keypoints, rotations, vertices and priors."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder = ImageEncoder(model)
        self.regressor = IterativeRegressor(model)
        self.gram_schmidt, self.rodrigues = GramSchmidt(model), Rodrigues()
        self.body = BodyModel(model)
        self.keypoints, self.project = Keypoints(), WeakPerspective()
        self.image_loss, self.joint_loss = ImageLoss(model), JointLoss()
        self.rotation_mean = KnownMean()
        self.edge_loss, self.laplacian_loss = EdgeLoss(), LaplacianLoss(model)
        self.prior = MixturePrior(model)

    def construct(self, images, image_keypoints, keypoints, axis_angles, vertices, is_known):
        pose, axis_angle, shape, camera = self.regressor(self.encoder(images))
        last = self.rodrigues(axis_angle.reshape(-1, TURNED, 3))
        rotations = ops.concat((self.gram_schmidt(pose), last), 1)
        body, joints = self.body(rotations, shape)
        points = self.keypoints(body, joints)

        errors = ops.square(rotations - self.rodrigues(axis_angles))
        loss = IMAGE_WEIGHT * self.image_loss(self.project(points, camera), image_keypoints)
        loss = loss + JOINT_WEIGHT * self.joint_loss(points, keypoints)
        loss = loss + self.rotation_mean(errors, is_known)
        loss = loss + EDGE_WEIGHT * self.edge_loss(body, vertices, is_known)
        loss = loss + LAPLACIAN_WEIGHT * self.laplacian_loss(body, vertices, is_known)
        loss = loss + PRIOR_WEIGHT * self.prior(axis_angle)
        return loss + SHAPE_WEIGHT * ops.square(shape).sum(1).mean()


def apply_unit(x):
    """Return vectors of the length one."""
    return x * mint.rsqrt(mint.sum(mint.square(x), -1, True))


def turn_axis_angles(x):
    """Return rotations by the outer product of the axis."""
    angle = mint.sqrt(mint.sum(mint.square(x + TINY), -1, True))
    axis = x / angle
    cosine, sine = mint.cos(angle), mint.sin(angle)
    rows = ()
    for n in range(3):
        after, behind = (n + 1) % 3, (n + 2) % 3
        for m in range(3):
            outer = (1 - cosine) * axis[..., n : n + 1] * axis[..., m : m + 1]
            if m == n:
                rows += (outer + cosine,)
            elif m == after:
                rows += (outer - sine * axis[..., behind : behind + 1],)
            else:
                rows += (outer + sine * axis[..., after : after + 1],)
    return mint.cat(rows, -1).reshape(BATCH, -1, 3, 3)


class WrittenLinear(nn.Cell):
    """A linear layer, or several ones of the same input."""

    def __init__(self, model: Model, *paths: str) -> None:
        super().__init__()
        self.matrix = Parameter(read(model, *(f"{path}.weight" for path in paths)))
        self.shift = Parameter(read(model, *(f"{path}.bias" for path in paths)))

    def construct(self, x):
        return mint.matmul(x, self.matrix.swapaxes(0, 1)) + self.shift


class WrittenBody(nn.Cell):
    """The body with rotations and translations apart."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.template = build_buffer(model, "body.template")
        self.shape_basis = build_buffer(model, "body.shape_directions")
        self.pose_basis = build_buffer(model, "body.pose_directions")
        self.to_joints = build_buffer(model, "body.joint_regressor")
        self.shares = build_buffer(model, "body.skinning")
        self.identity = Tensor(np.tile(np.eye(3, dtype=np.float32).reshape(9), JOINTS - 1))

    def construct(self, rotations, shape):
        basis = self.shape_basis.reshape(VERTICES, 3 * SHAPE)
        joint_basis = mint.matmul(self.to_joints, basis).reshape(JOINTS * 3, SHAPE)
        joints = mint.matmul(shape, joint_basis.swapaxes(0, 1)).reshape(BATCH, JOINTS, 3)
        joints = joints + mint.matmul(self.to_joints, self.template)

        pose = rotations[:, 1:].reshape(BATCH, POSE_FEATURES) - self.identity
        basis = self.shape_basis.reshape(VERTICES * 3, SHAPE).swapaxes(0, 1)
        moved = mint.matmul(shape, basis) + mint.matmul(pose, self.pose_basis)
        posed = self.template + moved.reshape(BATCH, VERTICES, 3)

        turns, places = (rotations[:, 0],), (joints[:, :1],)
        for n in range(1, JOINTS):
            above = turns[PARENTS[n]].permute(0, 2, 1)
            bone = joints[:, n : n + 1] - joints[:, PARENTS[n] : PARENTS[n] + 1]
            places += (places[PARENTS[n]] + mint.matmul(bone, above),)
            turns += (mint.matmul(turns[PARENTS[n]], rotations[:, n]),)
        turn, place = ops.stack(turns, 1), mint.cat(places, 1)
        shift = place - mint.sum(turn * joints.expand_dims(2), -1)

        blended = mint.matmul(self.shares, turn.reshape(BATCH, JOINTS, 9))
        blended = blended.reshape(BATCH, VERTICES, 3, 3)
        vertices = mint.sum(blended * posed.expand_dims(2), -1) + mint.matmul(self.shares, shift)
        return vertices, place


class WrittenLoss(nn.Cell):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.first = build_conv(model, "encoder.0", 2)
        self.second = build_conv(model, "encoder.1", 2)
        self.third = build_conv(model, "encoder.2", 1)
        self.hidden1 = WrittenLinear(model, "regressor.fc1")
        self.hidden2 = WrittenLinear(model, "regressor.fc2")
        names = ("pose", "axis_angles", "shape", "camera")
        self.correction = WrittenLinear(model, *(f"regressor.{name}" for name in names))
        self.start = build_buffer(model, *(f"mean.{name}" for name in names))
        self.mesh = WrittenBody(model)
        self.centers = build_buffer(model, "prior.means")
        self.factors = build_buffer(model, "prior.precisions")
        self.levels = build_buffer(model, "prior.log_weights")

        ends = np.zeros((len(EDGES), VERTICES), np.float32)
        ends[np.arange(len(EDGES)), EDGES[:, 0]] = 1
        ends[np.arange(len(EDGES)), EDGES[:, 1]] = -1
        self.incidence = Tensor(ends)
        laplacian = np.eye(VERTICES)
        for vertex, count in enumerate(NEIGHBOUR_COUNTS):
            laplacian[vertex, NEIGHBOURS[vertex, :count]] = -1 / count
        self.laplacian = Tensor(laplacian.astype(np.float32))
        choice = np.zeros((len(KEYPOINT_MAP), JOINTS + len(MARKERS)), np.float32)
        choice[np.arange(len(KEYPOINT_MAP)), KEYPOINT_MAP] = 1
        self.choice = Tensor(choice)

    def regress(self, images):
        """Return parameters (BATCH, STATE)."""
        x = mint.nn.functional.relu(self.first(images))
        x = mint.nn.functional.relu(self.second(x))
        x = (mint.nn.functional.relu(self.third(x)) + x).reshape(BATCH, FEATURES, CELLS)
        features = mint.sum(x, -1) / CELLS
        state = mint.broadcast_to(self.start, (BATCH, STATE))
        for _ in range(ITERATIONS):
            hidden = self.hidden1(mint.cat((features, state), -1))
            hidden = self.hidden2(mint.nn.functional.relu(hidden))
            state = state + self.correction(mint.nn.functional.relu(hidden))
        return state

    def orthogonalize(self, pose):
        """Return rotations of the first joints."""
        pairs = pose.reshape(BATCH, MATRICES, 3, 2)
        x = apply_unit(pairs[..., 0])
        other = pairs[..., 1]
        y = apply_unit(other - x * mint.sum(x * other, -1, True))
        z = mint.cat((x[..., 1:], x[..., :1]), -1) * mint.cat((y[..., 2:], y[..., :2]), -1)
        z = z - mint.cat((x[..., 2:], x[..., :2]), -1) * mint.cat((y[..., 1:], y[..., :1]), -1)
        columns = mint.cat((x, y, z), -1).reshape(BATCH, MATRICES, 3, 3)
        return columns.permute(0, 1, 3, 2)

    def compare_keypoints(self, body, joints, camera, image_keypoints, keypoints):
        """Return both losses of keypoints."""
        markers = tuple(body[:, number : number + 1] for number in MARKERS)
        points = mint.matmul(self.choice, mint.cat((joints, *markers), 1))
        scale, shift = camera[:, :, :1], camera[:, :, 1:]
        squares = mint.square(scale * points[..., :2] + scale * shift - image_keypoints[..., :2])
        robust = SIGMA**2 * (1 - SIGMA**2 / (squares + SIGMA**2))
        confidence = image_keypoints[..., 2:]
        n_seen = mint.sum((confidence > 0).astype(ms.float32))
        loss = IMAGE_WEIGHT * mint.sum(confidence * robust) / n_seen

        error = points - keypoints[..., :3]
        error = error - 0.5 * (error[:, HIPS[0] : HIPS[0] + 1] + error[:, HIPS[1] : HIPS[1] + 1])
        distance = mint.abs(error)
        inner = mint.clamp(distance, max=BETA)
        confidence = keypoints[..., 3:]
        n_seen = mint.sum((confidence > 0).astype(ms.float32))
        smooth = inner * (distance - 0.5 * inner) / BETA
        return loss + JOINT_WEIGHT * mint.sum(confidence * smooth) / (3 * n_seen)

    def compare_meshes(self, body, vertices):
        """Return losses (BATCH,) of edges and Laplacians."""
        lengths = mint.sqrt(mint.sum(mint.square(mint.matmul(self.incidence, body)), -1))
        wanted = mint.sqrt(mint.sum(mint.square(mint.matmul(self.incidence, vertices)), -1))
        losses = EDGE_WEIGHT * mint.mean(mint.abs(lengths - wanted), 1)
        bent = mint.square(mint.matmul(self.laplacian, body - vertices)).reshape(BATCH, -1)
        return losses + 3 * LAPLACIAN_WEIGHT * mint.mean(bent, 1)

    def rate(self, axis_angle):
        """Return minus the logarithm of the density of axis-angles."""
        difference = axis_angle.expand_dims(0) - self.centers.reshape(COMPONENTS, 1, AXIS_ANGLES)
        squares = mint.square(mint.matmul(difference, self.factors))
        scores = self.levels.expand_dims(-1) - 0.5 * mint.sum(squares, -1)
        highest = ops.stop_gradient(scores.max(0, keepdims=True))
        return -mint.mean(mint.log(mint.sum(mint.exp(scores - highest), 0, True)) + highest)

    def construct(self, images, image_keypoints, keypoints, axis_angles, vertices, is_known):
        state = self.regress(images)
        axis_angle = state[:, POSE : POSE + AXIS_ANGLES]
        shape = state[:, POSE + AXIS_ANGLES : POSE + AXIS_ANGLES + SHAPE]
        camera = state[:, POSE + AXIS_ANGLES + SHAPE :].expand_dims(1)
        last = turn_axis_angles(axis_angle.reshape(BATCH, TURNED, 3))
        rotations = mint.cat((self.orthogonalize(state[:, :POSE]), last), 1)
        body, joints = self.mesh(rotations, shape)

        loss = self.compare_keypoints(body, joints, camera, image_keypoints, keypoints)
        errors = mint.square(rotations - turn_axis_angles(axis_angles)).reshape(BATCH, -1)
        losses = mint.mean(errors, 1) + self.compare_meshes(body, vertices)
        loss = loss + mint.sum(losses * is_known) / mint.sum(is_known)
        loss = loss + PRIOR_WEIGHT * self.rate(axis_angle)
        return loss + SHAPE_WEIGHT / BATCH * mint.sum(mint.square(shape))
