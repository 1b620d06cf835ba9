"""A perceptron whose activations are most of its memory."""
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
layers = [layer for _ in range(4) for layer in (torch.nn.Linear(256, 256, bias=False), torch.nn.ReLU())]
model = torch.nn.Sequential(*layers[:-1]).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
x = torch.randn(16384, 256).to(device)
for _ in range(3):
    loss = torch.nn.functional.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
if device == "cuda":
    print("peak", 0, torch.cuda.max_memory_allocated())
