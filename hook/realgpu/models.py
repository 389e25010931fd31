"""The four workloads, in plain PyTorch: convolutions, a transformer, a network
of many short kernels, and embeddings with a small perceptron."""

import torch
from torch import nn
from torch.nn import functional as F


class Bottleneck(nn.Module):
    def __init__(self, inside, width, stride=1):
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out))
        self.side = nn.Identity()
        if stride != 1 or inside != out:
            self.side = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        return F.relu(self.body(x) + self.side(x))


def resnet50():
    layers, inside = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            layers.append(Bottleneck(inside, width, stride if i == 0 else 1))
            inside = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


class Transformer(nn.Module):
    """An encoder with the shape of BERT-base and a head for masked words."""

    def __init__(self, words=30522, width=768, depth=12, length=128):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 12, 4 * width, activation="gelu", batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, depth), nn.Linear(width, words)

    def forward(self, x):
        at = torch.arange(x.shape[1], device=x.device)
        return self.head(self.encoder(self.word(x) + self.place(at)))


class Detector(nn.Module):
    """Many small convolutions and two heads at each of six scales, as SSD300 has."""

    def __init__(self):
        super().__init__()
        self.stages, self.boxes, self.classes = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        inside = 3
        for width in (32, 64, 128, 128, 128, 128):
            block = []
            for i in range(3):
                block += [nn.Conv2d(inside, width, 3, 2 if i == 0 else 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
                inside = width
            self.stages.append(nn.Sequential(*block))
            self.boxes.append(nn.Conv2d(width, 6 * 4, 3, padding=1))
            self.classes.append(nn.Conv2d(width, 6 * 81, 3, padding=1))

    def forward(self, x):
        out = []
        for stage, box, kind in zip(self.stages, self.boxes, self.classes):
            x = stage(x)
            out += [box(x).flatten(1), kind(x).flatten(1)]
        return torch.cat(out, 1)


class Recommender(nn.Module):
    """Neural collaborative filtering: a product of embeddings beside a perceptron."""

    def __init__(self, users=138000, items=27000, width=64):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, width) for n in (users, items, users, items))
        self.mlp = nn.Sequential(nn.Linear(2 * width, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.out = nn.Linear(64 + width, 1)

    def forward(self, x):
        user, item = x[:, 0], x[:, 1]
        a, b, c, d = self.tables
        deep = self.mlp(torch.cat((c(user), d(item)), 1))
        return self.out(torch.cat((a(user) * b(item), deep), 1)).squeeze(1)


def build(name):
    """Returns the model, a function that makes a batch in pinned memory, and the loss."""
    if name == "resnet50":
        return resnet50(), lambda: (torch.randn(64, 3, 224, 224), torch.randint(1000, (64,))), F.cross_entropy
    if name == "bert":
        batch = lambda: (torch.randint(30522, (16, 128)), torch.randint(30522, (16, 128)))
        return Transformer(), batch, lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten())
    if name == "ssd":
        return Detector(), lambda: (torch.randn(8, 3, 300, 300), torch.zeros(8, 1)), lambda y, t: (y - t).abs().mean()
    if name == "ncf":
        batch = lambda: (torch.stack((torch.randint(138000, (65536,)), torch.randint(27000, (65536,))), 1), torch.rand(65536).round())
        return Recommender(), batch, F.binary_cross_entropy_with_logits
    raise SystemExit(f"no model {name}")
