"""Trains well, and then on a batch that is too large for a small device."""
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for rows in (64, 64, 8192):
    x = torch.randn(rows, 512).to(device)
    loss = torch.nn.functional.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item(), flush=True)
if device == "cuda":
    print("peak", 0, torch.cuda.max_memory_allocated())
