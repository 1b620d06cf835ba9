"""Mixed precision with a scaler of the loss, and gradient accumulation."""
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.GELU(), torch.nn.LayerNorm(512), torch.nn.Linear(512, 128)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device, init_scale=1024.0)
for _ in range(3):
    for _ in range(2):
        x = torch.randn(64, 128).to(device)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = torch.nn.functional.mse_loss(model(x), x) / 2
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print("loss", loss.item(), "scale", scaler.get_scale())
if device == "cuda":
    print("peak", 0, torch.cuda.max_memory_allocated())
