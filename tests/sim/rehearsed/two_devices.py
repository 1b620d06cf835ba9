"""One process with a half of the model on each of two devices."""
import torch

devices = ["cuda:0", "cuda:1"] if torch.cuda.is_available() else ["cpu", "cpu"]
torch.manual_seed(0)
first = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.Tanh()).to(devices[0])
second = torch.nn.Linear(1024, 256).to(devices[1])
optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], lr=1e-3)
for _ in range(3):
    x = torch.randn(512, 256)
    loss = torch.nn.functional.mse_loss(second(first(x.to(devices[0])).to(devices[1])), x.to(devices[1]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
if torch.cuda.is_available():
    for number in range(2):
        print("peak", number, torch.cuda.max_memory_allocated(number))
