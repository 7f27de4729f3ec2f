"""Loss and gradients under measurement: the bars of training, and other libraries beside us.

problems.py        operands that want gradients: random ones, or the real head of examples/real_head.py
contenders.py      ours, torch's and the peers' loss with its gradients, and the bare products that they are measured by
bars.py            time of ours over the bare products, or over a peer's, each with its bar
memory.py          peak memory of ours above operands, values and gradients, each with its bar
peers.py           everyone in turn on one problem: time and peak memory
accuracy.py        errors of loss and gradients against float64, ours with its bar
gradient_filter.py what the gradient filter saves on the real head, and what it costs in accuracy
"""
