"""A compiled model, by the default backend: Inductor."""
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.GELU(), torch.nn.LayerNorm(512), torch.nn.Linear(512, 128)).to(device)
step = torch.compile(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
for _ in range(3):
    x = torch.randn(64, 128).to(device)
    loss = torch.nn.functional.mse_loss(step(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
if device == "cuda":
    print("peak", 0, torch.cuda.max_memory_allocated())
