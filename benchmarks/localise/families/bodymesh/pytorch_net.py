"""A regressor of a parametric body model in PyTorch, with the names of HMR's and SMPL's code.

Variant 'fused': other names, one layer for all corrections, joints of a depth in the tree at once,
one blending of all directions, losses from built-in ones.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from families.bodymesh.architecture import (
    BATCH,
    BETA,
    EDGE_WEIGHT,
    EDGES,
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
    PARAMETERS,
    PARENTS,
    PRIOR_WEIGHT,
    SHAPE,
    SHAPE_WEIGHT,
    SIGMA,
    TINY,
    TURNED,
    VERTICES,
    Model,
)

PARTS = ("pose", "axis_angles", "shape", "camera")


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return FusedLoss(model) if model.variant == "fused" else HMRLoss(model)


def read(model: Model, *names: str) -> Tensor:
    """Return a weight, or several ones behind each other."""
    return torch.from_numpy(np.concatenate([model.weights[name] for name in names]))


def load_linear(model: Model, *paths: str) -> nn.Linear:
    """Return a linear layer, or several ones of the same input."""
    weight = read(model, *(f"{path}.weight" for path in paths))
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    bias = read(model, *(f"{path}.bias" for path in paths))
    layer.load_state_dict({"weight": weight, "bias": bias})
    return layer


def load_conv(model: Model, path: str, stride: int) -> nn.Conv2d:
    """Return the convolution at a path."""
    weight = read(model, f"{path}.weight")
    conv = nn.Conv2d(weight.shape[1], weight.shape[0], 3, stride, padding=1)
    conv.load_state_dict({"weight": weight, "bias": read(model, f"{path}.bias")})
    return conv


class Backbone(nn.Module):
    """Features (batch, FEATURES) of images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1 = load_conv(model, "encoder.0", 2)
        self.conv2 = load_conv(model, "encoder.1", 2)
        self.conv3 = load_conv(model, "encoder.2", 1)
        self.relu = nn.ReLU()
        self.avgpool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.conv2(self.relu(self.conv1(x))))
        x = x + self.relu(self.conv3(x))
        return self.avgpool(x).flatten(1)


class HMRHead(nn.Module):
    """Parameters of the body and the camera, by corrections of means."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.fc1, self.fc2 = (load_linear(model, f"regressor.{name}") for name in ("fc1", "fc2"))
        self.drop1, self.drop2 = nn.Dropout(0.0), nn.Dropout(0.0)
        self.decpose, self.decaa, self.decshape, self.deccam = (
            load_linear(model, f"regressor.{name}") for name in PARTS
        )
        for name, part in zip(("pose", "aa", "shape", "cam"), PARTS, strict=True):
            self.register_buffer(f"init_{name}", read(model, f"mean.{part}").unsqueeze(0))

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        batch_size = features.shape[0]
        pred_pose = self.init_pose.expand(batch_size, -1)
        pred_aa = self.init_aa.expand(batch_size, -1)
        pred_shape = self.init_shape.expand(batch_size, -1)
        pred_cam = self.init_cam.expand(batch_size, -1)
        for _ in range(ITERATIONS):
            xc = torch.cat([features, pred_pose, pred_aa, pred_shape, pred_cam], 1)
            xc = self.drop1(F.relu(self.fc1(xc)))
            xc = self.drop2(F.relu(self.fc2(xc)))
            pred_pose = self.decpose(xc) + pred_pose
            pred_aa = self.decaa(xc) + pred_aa
            pred_shape = self.decshape(xc) + pred_shape
            pred_cam = self.deccam(xc) + pred_cam
        return pred_pose, pred_aa, pred_shape, pred_cam


def rot6d_to_rotmat(x: Tensor) -> Tensor:
    """Return rotations (batch * MATRICES, 3, 3) of six numbers each."""
    x = x.reshape(-1, 3, 2)
    a1, a2 = x[:, :, 0], x[:, :, 1]
    b1 = F.normalize(a1)
    b2 = F.normalize(a2 - torch.einsum("bi,bi->b", b1, a2).unsqueeze(-1) * b1)
    b3 = torch.cross(b1, b2, dim=1)
    return torch.stack((b1, b2, b3), dim=-1)


def batch_rodrigues(rot_vecs: Tensor) -> Tensor:
    """Return rotations (number, 3, 3) of axis-angles (number, 3)."""
    angle = torch.norm(rot_vecs + TINY, dim=1, keepdim=True)
    rx, ry, rz = torch.split(rot_vecs / angle, 1, dim=1)
    cos, sin = torch.cos(angle).unsqueeze(1), torch.sin(angle).unsqueeze(1)
    zeros = torch.zeros_like(rx)
    k = torch.cat([zeros, -rz, ry, rz, zeros, -rx, -ry, rx, zeros], dim=1).view(-1, 3, 3)
    ident = torch.eye(3, dtype=rot_vecs.dtype, device=rot_vecs.device).unsqueeze(0)
    return ident + sin * k + (1 - cos) * torch.bmm(k, k)


def transform_mat(rotation: Tensor, translation: Tensor) -> Tensor:
    """Return transforms (number, 4, 4)."""
    return torch.cat([F.pad(rotation, [0, 0, 0, 1]), F.pad(translation, [0, 0, 0, 1], value=1)], 2)


class SMPL(nn.Module):
    """Vertices and joints of rotations (batch, JOINTS, 3, 3) and shape coefficients."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.register_buffer("v_template", read(model, "body.template"))
        self.register_buffer("shapedirs", read(model, "body.shape_directions"))
        self.register_buffer("posedirs", read(model, "body.pose_directions"))
        self.register_buffer("J_regressor", read(model, "body.joint_regressor"))
        self.register_buffer("lbs_weights", read(model, "body.skinning"))
        self.register_buffer("parents", torch.tensor(PARENTS))

    def batch_rigid_transform(self, rot_mats: Tensor, joints: Tensor) -> tuple[Tensor, Tensor]:
        """Return posed joints, and transforms from the pose at rest."""
        joints = joints.unsqueeze(-1)
        rel_joints = joints.clone()
        rel_joints[:, 1:] -= joints[:, self.parents[1:]]
        transforms = transform_mat(rot_mats.reshape(-1, 3, 3), rel_joints.reshape(-1, 3, 1))
        transforms = transforms.reshape(-1, JOINTS, 4, 4)
        chain = [transforms[:, 0]]
        for i in range(1, JOINTS):
            chain.append(torch.matmul(chain[self.parents[i]], transforms[:, i]))
        transforms = torch.stack(chain, dim=1)
        posed_joints = transforms[:, :, :3, 3]
        joints_homogen = F.pad(joints, [0, 0, 0, 1])
        rel_transforms = transforms - F.pad(torch.matmul(transforms, joints_homogen), [3, 0])
        return posed_joints, rel_transforms

    def forward(self, rotmat: Tensor, betas: Tensor) -> tuple[Tensor, Tensor]:
        batch_size = betas.shape[0]
        v_shaped = self.v_template + torch.einsum("bl,mkl->bmk", betas, self.shapedirs)
        joints = torch.einsum("bik,ji->bjk", v_shaped, self.J_regressor)

        ident = torch.eye(3, dtype=rotmat.dtype, device=rotmat.device)
        pose_feature = (rotmat[:, 1:] - ident).view(batch_size, -1)
        pose_offsets = torch.matmul(pose_feature, self.posedirs).view(batch_size, -1, 3)
        v_posed = pose_offsets + v_shaped

        posed_joints, transforms = self.batch_rigid_transform(rotmat, joints)
        weights = self.lbs_weights.unsqueeze(0).expand(batch_size, -1, -1)
        blended = torch.matmul(weights, transforms.view(batch_size, JOINTS, 16))
        blended = blended.view(batch_size, -1, 4, 4)
        homogen_coord = torch.ones(batch_size, VERTICES, 1, dtype=v_posed.dtype)
        v_posed_homo = torch.cat([v_posed, homogen_coord], dim=2)
        v_homo = torch.matmul(blended, v_posed_homo.unsqueeze(-1))
        return v_homo[:, :, :3, 0], posed_joints


class VertexJointSelector(nn.Module):
    """Keypoints (batch, KEYPOINTS, 3) among joints and vertices."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        first = 1 if model.are_markers_from_one else 0
        self.register_buffer("extra_joints_idxs", torch.tensor(MARKERS) + first)
        self.register_buffer("joint_map", torch.tensor(KEYPOINT_MAP))

    def forward(self, vertices: Tensor, joints: Tensor) -> Tensor:
        extra_joints = torch.index_select(vertices, 1, self.extra_joints_idxs)
        return torch.cat([joints, extra_joints], dim=1)[:, self.joint_map]


class OrthographicCamera(nn.Module):
    """Keypoints in the image."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_camera_shift_unscaled = model.is_camera_shift_unscaled

    def forward(self, points: Tensor, camera: Tensor) -> Tensor:
        camera = camera.view(-1, 1, 3)
        if self.is_camera_shift_unscaled:
            return camera[:, :, :1] * points[:, :, :2] + camera[:, :, 1:]
        return camera[:, :, :1] * (points[:, :, :2] + camera[:, :, 1:])


class KeypointLoss(nn.Module):
    """Losses of keypoints in the image and in space."""

    def project_loss(self, pred: Tensor, gt: Tensor) -> Tensor:
        """Return Geman-McClure's function of differences in the image."""
        conf = gt[:, :, 2]
        residual = (pred - gt[:, :, :2]) ** 2
        dist = (residual * SIGMA**2) / (residual + SIGMA**2)
        return (conf * dist.sum(dim=-1)).sum() / (conf > 0).sum()

    def joint_loss(self, pred: Tensor, gt: Tensor) -> Tensor:
        """Return smooth L1 of keypoints less the middle of the hips."""
        conf, gt = gt[:, :, 3], gt[:, :, :3]
        gt = gt - gt[:, list(HIPS)].mean(dim=1, keepdim=True)
        pred = pred - pred[:, list(HIPS)].mean(dim=1, keepdim=True)
        losses = F.smooth_l1_loss(pred, gt, reduction="none", beta=BETA)
        return (conf * losses.mean(dim=-1)).sum() / (conf > 0).sum()


class MeshLoss(nn.Module):
    """Losses of vertices of persons with a known body."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edges", torch.from_numpy(EDGES).long())
        self.register_buffer("neighbors", torch.from_numpy(NEIGHBOURS).long())
        self.register_buffer("counts", torch.from_numpy(NEIGHBOUR_COUNTS).unsqueeze(-1))

    def edge_loss(self, pred: Tensor, gt: Tensor) -> Tensor:
        """Return the mean absolute difference of lengths of edges."""
        start, end = self.edges.unbind(1)
        pred_length = torch.norm(pred[:, start] - pred[:, end], dim=-1)
        gt_length = torch.norm(gt[:, start] - gt[:, end], dim=-1)
        return F.l1_loss(pred_length, gt_length)

    def laplacian(self, vertices: Tensor) -> Tensor:
        """Return vertices less the means of their neighbours."""
        mask = torch.arange(self.neighbors.shape[1]) < self.counts
        near = vertices[:, self.neighbors] * mask.unsqueeze(-1)
        return vertices - near.sum(dim=2) / self.counts

    def laplacian_loss(self, pred: Tensor, gt: Tensor) -> Tensor:
        """Return the mean squared difference of Laplacians."""
        return ((self.laplacian(pred) - self.laplacian(gt)) ** 2).sum(dim=-1).mean()


class FusedHalfSquare(Function):
    """Half of the square, with the gradient of the whole one."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 0.5 * x * x

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class GMMPrior(nn.Module):
    """Minus the logarithm of the density of axis-angles."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        for name in ("means", "precisions", "log_weights"):
            self.register_buffer(name, read(model, f"prior.{name}"))
        self.is_square_gradient_whole = model.is_square_gradient_whole

    def forward(self, pose: Tensor) -> Tensor:
        diff = pose.unsqueeze(1) - self.means
        whitened = torch.einsum("bki,kij->bkj", diff, self.precisions)
        if self.is_square_gradient_whole:
            squares = FusedHalfSquare.apply(whitened)
        else:
            squares = 0.5 * whitened**2
        log_likelihood = self.log_weights - squares.sum(dim=-1)
        return -torch.logsumexp(log_likelihood, dim=1).mean()


class HMRLoss(nn.Module):
    """Keypoints, rotations, vertices and priors."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.backbone, self.head = Backbone(model), HMRHead(model)
        self.smpl = SMPL(model)
        self.selector, self.camera = VertexJointSelector(model), OrthographicCamera(model)
        self.keypoint_loss, self.mesh_loss = KeypointLoss(), MeshLoss()
        self.criterion_regr = nn.MSELoss()
        self.prior = GMMPrior(model)
        self.is_mean_of_all = model.is_mean_of_all

    def rotation_loss(self, pred: Tensor, gt: Tensor, has_smpl: Tensor) -> Tensor:
        """Return the mean square of differences over persons with a known body."""
        if self.is_mean_of_all:
            return (has_smpl.view(-1, 1, 1, 1) * (pred - gt) ** 2).mean()
        return self.criterion_regr(pred[has_smpl == 1], gt[has_smpl == 1])

    def forward(
        self,
        images: Tensor,
        gt_keypoints_2d: Tensor,
        gt_keypoints_3d: Tensor,
        gt_pose: Tensor,
        gt_vertices: Tensor,
        has_smpl: Tensor,
    ) -> Tensor:
        pred_pose, pred_aa, pred_betas, pred_camera = self.head(self.backbone(images))
        batch_size = images.shape[0]
        body_rotmat = rot6d_to_rotmat(pred_pose).view(batch_size, MATRICES, 3, 3)
        aa_rotmat = batch_rodrigues(pred_aa.reshape(-1, 3)).view(batch_size, TURNED, 3, 3)
        pred_rotmat = torch.cat([body_rotmat, aa_rotmat], dim=1)
        pred_vertices, pred_joints = self.smpl(pred_rotmat, pred_betas)
        pred_keypoints = self.selector(pred_vertices, pred_joints)
        pred_keypoints_2d = self.camera(pred_keypoints, pred_camera)

        gt_rotmat = batch_rodrigues(gt_pose.view(-1, 3)).view(-1, JOINTS, 3, 3)
        known, gt_known = pred_vertices[has_smpl == 1], gt_vertices[has_smpl == 1]
        loss = IMAGE_WEIGHT * self.keypoint_loss.project_loss(pred_keypoints_2d, gt_keypoints_2d)
        loss = loss + JOINT_WEIGHT * self.keypoint_loss.joint_loss(pred_keypoints, gt_keypoints_3d)
        loss = loss + self.rotation_loss(pred_rotmat, gt_rotmat, has_smpl)
        loss = loss + EDGE_WEIGHT * self.mesh_loss.edge_loss(known, gt_known)
        loss = loss + LAPLACIAN_WEIGHT * self.mesh_loss.laplacian_loss(known, gt_known)
        loss = loss + PRIOR_WEIGHT * self.prior(pred_aa)
        return loss + SHAPE_WEIGHT * (pred_betas**2).sum(dim=1).mean()


def list_depths() -> list[list[int]]:
    """Return joints of each depth in the tree."""
    depths = [0] * JOINTS
    for joint, parent in list(enumerate(PARENTS))[1:]:
        depths[joint] = depths[parent] + 1
    return [
        [joint for joint in range(JOINTS) if depths[joint] == depth]
        for depth in range(max(depths) + 1)
    ]


class FusedBody(nn.Module):
    """The body with one blending of all directions, and joints of a depth at once."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.register_buffer("rest", read(model, "body.template"))
        shape_basis = read(model, "body.shape_directions").reshape(-1, SHAPE).mT
        pose_basis = read(model, "body.pose_directions")
        self.register_buffer("basis", torch.cat((shape_basis, pose_basis)).contiguous())
        self.register_buffer("regressor", read(model, "body.joint_regressor"))
        self.register_buffer("shares", read(model, "body.skinning"))
        self.depths = list_depths()
        order = [joint for joints in self.depths for joint in joints]
        self.order = [order.index(joint) for joint in range(JOINTS)]

    def forward(self, rotations: Tensor, shape: Tensor) -> tuple[Tensor, Tensor]:
        shaped = (shape @ self.basis[:SHAPE]).unflatten(-1, (VERTICES, 3)) + self.rest
        joints = self.regressor @ shaped
        pose = (rotations[:, 1:] - torch.eye(3)).flatten(1)
        moved = torch.cat((shape, pose), dim=1) @ self.basis
        posed = self.rest + moved.unflatten(-1, (VERTICES, 3))

        bones = torch.cat((joints[:, :1], joints[:, 1:] - joints[:, PARENTS[1:]]), dim=1)
        local = torch.cat((rotations, bones.unsqueeze(-1)), dim=-1)
        levels = [local[:, :1]]
        for above, depth in zip(self.depths, self.depths[1:], strict=False):
            parents = levels[-1][:, [above.index(PARENTS[joint]) for joint in depth]]
            product = parents[..., :3] @ local[:, depth]
            shift = F.pad(parents[..., 3:], (3, 0))
            levels.append(product + shift)
        world = torch.cat(levels, dim=1)[:, self.order]

        turns, places = world[..., :3], world[..., 3]
        shifts = places - torch.einsum("bjcd,bjd->bjc", turns, joints)
        carried = torch.einsum("bjcd,bvd->bvjc", turns, posed) + shifts.unsqueeze(1)
        return torch.einsum("vj,bvjc->bvc", self.shares, carried), places


class FusedLoss(nn.Module):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            load_conv(model, "encoder.0", 2),
            nn.ReLU(),
            load_conv(model, "encoder.1", 2),
            nn.ReLU(),
        )
        self.block = nn.Sequential(load_conv(model, "encoder.2", 1), nn.ReLU())
        self.mlp = nn.Sequential(
            load_linear(model, "regressor.fc1"),
            nn.ReLU(),
            load_linear(model, "regressor.fc2"),
            nn.ReLU(),
        )
        self.update = load_linear(model, *(f"regressor.{part}" for part in PARTS))
        self.register_buffer("initial", read(model, *(f"mean.{part}" for part in PARTS)))
        self.mesh = FusedBody(model)
        for name in ("means", "precisions", "log_weights"):
            self.register_buffer(name, read(model, f"prior.{name}"))
        slots = torch.arange(NEIGHBOURS.shape[1])
        is_padding = slots >= torch.from_numpy(NEIGHBOUR_COUNTS).unsqueeze(-1)
        lists = torch.from_numpy(NEIGHBOURS).long().masked_fill(is_padding, -1)
        adjacency = torch.stack([(lists == n).sum(dim=1) for n in range(VERTICES)], dim=1).float()
        self.register_buffer("averages", adjacency / adjacency.sum(dim=1, keepdim=True))

    def turn(self, axis_angles: Tensor) -> Tensor:
        """Return rotations of axis-angles by products with the axis."""
        angle = torch.linalg.vector_norm(axis_angles + TINY, dim=-1)[..., None, None]
        axis = (axis_angles / angle.squeeze(-1)).unsqueeze(-2).expand(*axis_angles.shape, 3)
        skew = torch.linalg.cross(axis, torch.eye(3).expand_as(axis), dim=-1).mT
        return torch.eye(3) + angle.sin() * skew + (1 - angle.cos()) * (skew @ skew)

    def orthogonalize(self, pose: Tensor) -> Tensor:
        """Return rotations of the first joints."""
        first, second = pose.unflatten(-1, (MATRICES, 3, 2)).unbind(-1)
        first = F.normalize(first, dim=-1)
        second = second - torch.linalg.vecdot(first, second).unsqueeze(-1) * first
        second = second / torch.linalg.vector_norm(second, dim=-1, keepdim=True)
        third = torch.linalg.cross(first, second)
        return torch.stack((first, second, third), dim=-2).mT

    def compare_points(self, points: Tensor, camera: Tensor, flat: Tensor, space: Tensor) -> Tensor:
        """Return both losses of keypoints."""
        scale, shift = camera.unsqueeze(1).split((1, 2), dim=-1)
        squares = (torch.addcmul(scale * shift, scale, points[..., :2]) - flat[..., :2]).square()
        robust = squares / (1 + squares / SIGMA**2)
        losses = torch.einsum("bk,bkc->", flat[..., 2], robust)
        loss = IMAGE_WEIGHT * losses / torch.count_nonzero(flat[..., 2])

        points = points - (points[:, HIPS[0]] + points[:, HIPS[1]]).unsqueeze(1) / 2
        places = space[..., :3] - (space[:, HIPS[0], :3] + space[:, HIPS[1], :3]).unsqueeze(1) / 2
        losses = F.huber_loss(points, places, reduction="none", delta=BETA) / BETA
        losses = torch.einsum("bk,bkc->", space[..., 3], losses)
        return loss + JOINT_WEIGHT * losses / torch.count_nonzero(space[..., 3]) / 3

    def rate(self, axis_angles: Tensor) -> Tensor:
        """Return minus the logarithm of the density of axis-angles."""
        offsets = torch.einsum("ki,kij->kj", self.means, self.precisions)
        whitened = torch.einsum("bi,kij->bkj", axis_angles, self.precisions) - offsets
        scores = torch.log_softmax(self.log_weights - whitened.square().sum(dim=-1) / 2, dim=1)
        return (scores - self.log_weights + whitened.square().sum(dim=-1) / 2)[:, 0].mean()

    def forward(
        self,
        images: Tensor,
        flat: Tensor,
        space: Tensor,
        poses: Tensor,
        meshes: Tensor,
        is_known: Tensor,
    ) -> Tensor:
        x = self.stem(images)
        features = (self.block(x) + x).mean(dim=(2, 3))
        state = self.initial.expand(BATCH, -1)
        for _ in range(ITERATIONS):
            state = state + self.update(self.mlp(torch.cat((features, state), dim=-1)))
        pose, axis_angles, shape, camera = state.split(PARAMETERS, dim=-1)

        last = self.turn(axis_angles.unflatten(-1, (TURNED, 3)))
        rotations = torch.cat((self.orthogonalize(pose), last), dim=1)
        vertices, joints = self.mesh(rotations, shape)
        points = torch.cat((joints, vertices[:, MARKERS]), dim=1)[:, KEYPOINT_MAP]
        loss = self.compare_points(points, camera, flat, space)

        share = is_known / is_known.sum()
        losses = (rotations - self.turn(poses)).square().mean(dim=(1, 2, 3))
        starts, ends = EDGES.T.tolist()
        lengths = torch.linalg.vector_norm(vertices[:, starts] - vertices[:, ends], dim=-1)
        wanted = torch.linalg.vector_norm(meshes[:, starts] - meshes[:, ends], dim=-1)
        losses = losses + EDGE_WEIGHT * (lengths - wanted).abs().mean(dim=1)
        error = vertices - meshes
        bent = (error - self.averages @ error).square().sum(dim=-1).mean(dim=1)
        loss = loss + torch.dot(share, losses + LAPLACIAN_WEIGHT * bent)
        loss = loss + PRIOR_WEIGHT * self.rate(axis_angles)
        return loss + SHAPE_WEIGHT * shape.square().sum() / BATCH
