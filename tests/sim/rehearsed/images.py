"""Images, by operators that a device has in cuDNN: convolutions, batch norm, attention in 16 bits, and a network that recurs."""
import torch
from torch.nn import functional

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
image = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3, padding=1, bias=False), torch.nn.BatchNorm2d(64), torch.nn.ReLU(), torch.nn.Conv2d(64, 8, 3, padding=1)).to(device)
series = torch.nn.LSTM(64, 64, batch_first=True).to(device)
optimizer = torch.optim.SGD([*image.parameters(), *series.parameters()], lr=0.01)
for _ in range(3):
    x = torch.randn(32, 3, 64, 64).to(device)
    rows, _ = series(image(x).flatten(2)[:, :, :64])
    halves = rows.bfloat16().view(32, 8, 4, 16).transpose(1, 2)
    loss = functional.scaled_dot_product_attention(halves, halves, halves, is_causal=True).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
if device == "cuda":
    print("peak", 0, torch.cuda.max_memory_allocated())
