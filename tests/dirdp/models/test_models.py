"""Networks: size, shape, and the paper's initialisation U(−1/√k, 1/√k), k the fan-in, of every weight and bias."""

import math

import pytest
import torch
import torchvision
from scipy import stats
from torch import nn

from dirdp import models
from dirdp.models.normalization import groups

LAYERS = nn.Conv2d, nn.Linear
FALSE_ALARM = 1e-9
PIXELS = {"mlp": 8, "cnn": 8, "inception": 28}  # others 32


def build(name, *, channels=3, size=None, classes=10, seed=0, **options):
    torch.manual_seed(seed)
    size = PIXELS.get(name, 32) if size is None else size
    return models.build(name, in_channels=channels, image_size=size, classes=classes, **options)


def parameters(network):
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("name", "channels", "size", "expected"),
    [
        # Linear, its BatchNorm, the second pair, the head
        ("mlp", 1, 8, (64 + 1) * 128 + 256 + (128 + 1) * 128 + 256 + (128 + 1) * 10),
        ("mlp", 3, 32, (3072 + 1) * 128 + 256 + (128 + 1) * 128 + 256 + (128 + 1) * 10),
        ("cnn", 1, 8, (9 + 1) * 32 + 64 + (9 * 32 + 1) * 64 + 128 + (64 * 4 + 1) * 10),
        ("cnn", 3, 28, (27 + 1) * 32 + 64 + (9 * 32 + 1) * 64 + 128 + (64 * 49 + 1) * 10),
        ("resnet18", 3, 32, 11_173_962),
        ("resnet18", 1, 32, 11_173_962 - 2 * 9 * 64),
    ],
)
def test_parameter_counts(name, channels, size, expected):
    assert parameters(build(name, channels=channels, size=size)) == expected


def test_resnet18_is_the_small_image_variant():
    network = build("resnet18")
    assert network.conv1.kernel_size == (3, 3) and network.conv1.stride == (1, 1) and network.conv1.bias is None
    assert isinstance(network.maxpool, nn.Identity)
    reference = torchvision.models.resnet18(num_classes=10)
    assert parameters(network) == parameters(reference) - (49 - 9) * 3 * 64
    positions = []
    network.layer4.register_forward_hook(lambda layer, _, output: positions.append(tuple(output.shape)))
    network.eval()(torch.zeros(1, 3, 32, 32))
    assert positions == [(1, 512, 4, 4)]


@pytest.mark.parametrize("classes", [2, 7])
@pytest.mark.parametrize(
    ("name", "channels", "size"),
    [
        *((name, channels, size) for name in ("mlp", "cnn") for channels in (1, 3) for size in (8, 28, 32)),
        ("cnn", 1, 5),
        ("resnet18", 1, 28),
        ("resnet18", 3, 32),
        ("inception", 1, 28),
        ("inception", 3, 32),
    ],
)
def test_images_become_logits(name, channels, size, classes):
    network = build(name, channels=channels, size=size, classes=classes)
    images = torch.randn(2, channels, size, size)
    assert network.training
    logits = network(images)
    assert logits.shape == (2, classes) and logits.dtype == torch.float32 and logits.isfinite().all()
    assert network(images[:0]).shape == (0, classes)  # an empty minibatch
    network.eval()
    assert network(images[:1]).shape == (1, classes)
    assert not torch.equal(network(images)[0], network(images)[1])
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_inception_is_of_the_size_that_the_paper_needs():
    network = build("inception", channels=1, size=28)
    assert 90_000 < parameters(network) < 1_000_000
    kernels = {layer.kernel_size for layer in network.modules() if isinstance(layer, nn.Conv2d)}
    assert {(1, 1), (3, 3), (5, 5)} <= kernels
    assert any(isinstance(layer, nn.BatchNorm2d) for layer in network.modules())
    (head,) = (layer for layer in network.modules() if isinstance(layer, nn.Linear))
    assert head.in_features > 1000  # flattened, not averaged over the image


def departures(network):
    """Layers whose weights or biases do not follow U(−1/√k, 1/√k)."""
    found = []
    for name, layer in network.named_modules():
        if isinstance(layer, LAYERS):
            bound = 1 / math.sqrt(layer.weight[0].numel())
            for kind in ("weight", "bias"):
                tensor = getattr(layer, kind)
                if tensor is None:
                    continue
                values = tensor.detach().flatten()
                # float32 rounds the bound itself
                inside = values.abs().max().item() <= bound * (1 + 1e-6)
                law = stats.uniform(-bound, 2 * bound)
                if not inside or stats.kstest(values[:20_000].numpy(), law.cdf).pvalue < FALSE_ALARM:
                    found.append(f"{name}.{kind}")
    return found


LAYER_COUNTS = {"mlp": 3, "cnn": 3, "papernot_cnn": 4, "resnet18": 21, "inception": 17, "resnet9": 9, "wrn40_4": 41}


@pytest.mark.parametrize("name", models._FACTORIES)
def test_initialisation_is_pytorchs_layer_default(name):
    network = build(name)
    layers = [layer for layer in network.modules() if isinstance(layer, LAYERS)]
    assert len(layers) == LAYER_COUNTS[name]
    assert departures(network) == []
    for layer in network.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            assert (layer.weight == 1).all() and (layer.bias == 0).all()
            assert (layer.running_mean == 0).all() and (layer.running_var == 1).all()


def test_the_check_above_rejects_other_initialisations():
    """Kaiming's normal law, which torchvision's constructor uses, and rules a factor or a shape away from ours."""
    torch.manual_seed(0)
    theirs = torchvision.models.resnet18(num_classes=10)
    convolutions = [f"{name}.weight" for name, layer in theirs.named_modules() if isinstance(layer, nn.Conv2d)]
    assert departures(theirs) == convolutions and len(convolutions) == 20
    for change in (
        nn.init.kaiming_uniform_,  # bound √6/√k
        nn.init.kaiming_normal_,
        nn.init.xavier_uniform_,  # bound √(6/(k + fan-out))
        nn.init.zeros_,
        lambda weight: weight.data.mul_(1.01),
        lambda weight: weight.data.mul_(0.7),
        lambda weight: weight.data.abs_(),
    ):
        network = build("mlp", channels=1)
        assert departures(network) == []
        change(network[4].weight)
        assert departures(network) == ["4.weight"]


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet18"])
def test_weights_come_from_the_global_generator(name):
    one, same, other = (build(name, seed=seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not any(torch.equal(one[key], other[key]) for key in one if one[key].ndim > 1)


@pytest.mark.parametrize("name", ["vgg", "MLP", "", "resnet"])
def test_an_unknown_name_lists_the_choices(name):
    for refused in (lambda: build(name, size=8), lambda: models.check(name)):
        with pytest.raises(ValueError, match=f"unknown model '{name}'; choose from mlp, cnn, inception, resnet18"):
            refused()
    assert set(models._FACTORIES) < set(models.names())


def test_images_too_small_are_refused_by_size():
    with pytest.raises(ValueError, match="cnn needs images of at least 4 pixels a side, got image_size=3"):
        build("cnn", size=3)
    assert build("cnn", size=4)(torch.zeros(2, 3, 4, 4)).shape == (2, 10)
    with pytest.raises(ValueError, match="got image_size=8"):
        build("inception", size=8)


@pytest.mark.parametrize("name", ["mlp", "cnn", "inception", "resnet18"])
def test_group_norm_takes_the_place_of_batch_norm_and_leaves_the_rest(name):
    plain, grouped = build(name), build(name, norm="group")
    norms = [layer for layer in plain.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    replaced = [layer for layer in grouped.modules() if isinstance(layer, nn.GroupNorm)]
    assert not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in grouped.modules())
    assert [norm.num_features for norm in norms] == [norm.num_channels for norm in replaced] != []
    assert all(norm.num_groups == groups(norm.num_channels) for norm in replaced)
    assert parameters(plain) == parameters(grouped)
    for left, right in zip(plain.modules(), grouped.modules(), strict=True):
        if isinstance(left, LAYERS):
            assert torch.equal(left.weight, right.weight)
    for layer in [*plain.modules(), *grouped.modules()]:
        if isinstance(layer, nn.Dropout):
            layer.eval()
    size = PIXELS.get(name, 32)
    images = torch.randn(3, 3, size, size)
    alone = grouped(images[:1])  # records do not see one another
    torch.testing.assert_close(alone, grouped(images)[:1], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(plain(images)[:1], plain(images[:2])[:1], rtol=1e-2)
