import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.crypto.CryptoProtocolVersion;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileChecksum;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FsShell;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.StorageType;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.AddBlockFlag;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.client.HdfsDataInputStream;
import org.apache.hadoop.hdfs.protocol.ClientProtocol;
import org.apache.hadoop.hdfs.protocol.DatanodeInfo;
import org.apache.hadoop.hdfs.protocol.ExtendedBlock;
import org.apache.hadoop.hdfs.protocol.LastBlockWithStatus;
import org.apache.hadoop.hdfs.protocol.LocatedBlock;
import org.apache.hadoop.hdfs.server.datanode.DataNode;
import org.apache.hadoop.hdfs.server.datanode.Scan;
import org.apache.hadoop.hdfs.server.namenode.NotReplicatedYetException;
import org.apache.hadoop.io.EnumSetWritable;
import org.apache.hadoop.ipc.RemoteException;
import org.apache.hadoop.util.DataChecksum;

/** A name node and datanodes in this JVM, and what a client says to the name node. */
final class Cluster {
  private Cluster() {}

  /** The name by which the name node knows the client that writes. */
  private static final String CLIENT = "blockpath-interop";

  private static MiniDFSCluster cluster;
  private static int nodes;

  /** A client for each way to combine checksums. */
  private static final Map<String, FileSystem> byMode = new HashMap<>();

  /** Datanodes that have been stopped, by transfer port. */
  private static final Map<Integer, MiniDFSCluster.DataNodeProperties> stopped = new HashMap<>();

  private static Configuration conf(File dir) {
    Configuration c = new HdfsConfiguration();
    c.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, dir.getPath());
    c.setLong("dfs.namenode.fs-limits.min-block-size", 0);
    c.setInt("dfs.heartbeat.interval", 1);
    // how long a datanode waits for a block pool that it does not know
    c.setInt("dfs.datanode.bp-ready.timeout", 1);
    // close asks again soon whether the datanode has reported its block
    c.setInt("dfs.client.block.write.locateFollowingBlock.initial.delay.ms", 5);
    return c;
  }

  private static ClientProtocol nameNode() throws IOException {
    return cluster.getFileSystem().getClient().getNamenode();
  }

  private static ExtendedBlock block(String[] a, int i) {
    return new ExtendedBlock(Judge.text(a[i]), Long.parseLong(a[i + 1]), Long.parseLong(a[i + 3]),
        Long.parseLong(a[i + 2]));
  }

  /** Adds block, token, nodes, storage types and storage ids. */
  private static void add(List<String> r, LocatedBlock b) {
    Ops.head(r, b.getBlock(), b.getBlockToken());
    r.add(Ops.nodes(b.getLocations()));
    List<String> types = new ArrayList<>();
    for (StorageType t : b.getStorageTypes()) {
      types.add(t.name());
    }
    r.add(Ops.join(types));
    List<String> ids = new ArrayList<>();
    for (String id : b.getStorageIDs()) {
      ids.add(Judge.hexText(id));
    }
    r.add(Ops.join(ids));
  }

  static void register(Map<String, Judge.Command> commands) {
    // cluster.start DIR NODES [KEY=VALUE]...
    commands.put("cluster.start", (a, r) -> {
      if (cluster != null) {
        throw new IllegalStateException("the cluster runs already");
      }
      File dir = new File(Judge.text(a[1]));
      nodes = Integer.parseInt(a[2]);
      Configuration conf = conf(dir);
      for (int i = 3; i < a.length; i++) {
        String[] kv = a[i].split("=");
        conf.set(kv[0], kv[1]);
      }
      cluster = new MiniDFSCluster.Builder(conf, dir).numDataNodes(nodes).build();
      cluster.waitActive();
    });
    // cluster.uri: the name node's
    commands.put("cluster.uri", (a, r) -> r.add(cluster.getURI().toString()));
    // cluster.write PATH TYPE BPC BLOCKSIZE DATA: by the Java client
    commands.put("cluster.write", (a, r) -> {
      DistributedFileSystem fs = cluster.getFileSystem();
      Options.ChecksumOpt opt = new Options.ChecksumOpt(DataChecksum.Type.valueOf(a[2]),
          Integer.parseInt(a[3]));
      try (FSDataOutputStream out = fs.create(new Path(Judge.text(a[1])), FsPermission.getDefault(),
          EnumSet.of(CreateFlag.CREATE, CreateFlag.OVERWRITE), 4096, (short) 1,
          Long.parseLong(a[4]), null, opt)) {
        out.write(Judge.bytes(a[5]));
      }
    });
    // cluster.delete PATH
    commands.put("cluster.delete", (a, r) ->
        cluster.getFileSystem().delete(new Path(Judge.text(a[1])), false));
    // cluster.read PATH: by the Java client; visible length, and SHA-256 of the bytes up to it
    commands.put("cluster.read", (a, r) -> {
      try (HdfsDataInputStream in = (HdfsDataInputStream)
          cluster.getFileSystem().open(new Path(Judge.text(a[1])))) {
        r.add(Long.toString(in.getVisibleLength()));
        r.add(sha256(in));
      }
    });
    // cluster.checksum PATH MODE LENGTH|-: algorithm name, bytes and text, or "none"
    commands.put("cluster.checksum", (a, r) -> {
      FileSystem fs = byMode.get(a[2]);
      if (fs == null) {
        Configuration c = new Configuration(cluster.getConfiguration(0));
        c.set("dfs.checksum.combine.mode", a[2]);
        fs = FileSystem.newInstance(cluster.getURI(), c);
        byMode.put(a[2], fs);
      }
      Path p = new Path(Judge.text(a[1]));
      FileChecksum sum = a[3].equals("-") ? fs.getFileChecksum(p)
          : fs.getFileChecksum(p, Long.parseLong(a[3]));
      if (sum == null) {
        r.add("none");
        return;
      }
      r.add(sum.getAlgorithmName());
      r.add(Judge.hex(sum.getBytes()));
      r.add(sum.toString());
    });
    // cluster.shell MODE ARG...: "hdfs dfs" with the arguments (hex text), checksums combined by
    // MODE; the exit code and what it printed
    commands.put("cluster.shell", (a, r) -> {
      Configuration c = new Configuration(cluster.getConfiguration(0));
      c.set("dfs.checksum.combine.mode", a[1]);
      c.setBoolean("fs.hdfs.impl.disable.cache", true); // or an older client keeps its mode
      Judge.tool(new FsShell(c), Arrays.copyOfRange(a, 2, a.length), r);
    });
    // cluster.replicas PATH: of each block how many replicas there are, and of each of them the
    // block file and the meta file
    commands.put("cluster.replicas", (a, r) -> {
      DistributedFileSystem fs = cluster.getFileSystem();
      for (LocatedBlock lb : fs.getClient().getLocatedBlocks(Judge.text(a[1]), 0, Long.MAX_VALUE)
          .getLocatedBlocks()) {
        ExtendedBlock b = lb.getBlock();
        List<String> files = new ArrayList<>();
        for (int i = 0; i < nodes; i++) {
          File block = cluster.getBlockFile(i, b);
          File meta = cluster.getBlockMetadataFile(i, b);
          if (block != null && meta != null) {
            files.add(Judge.hexText(block.getPath()));
            files.add(Judge.hexText(meta.getPath()));
          }
        }
        r.add(Integer.toString(files.size() / 2));
        r.addAll(files);
      }
    });
    // cluster.nodes: the datanodes
    commands.put("cluster.nodes", (a, r) -> {
      for (DataNode n : cluster.getDataNodes()) {
        r.add(Ops.nodes(new DatanodeInfo.DatanodeInfoBuilder().setNodeID(n.getDatanodeId()).build()));
      }
    });
    // cluster.locate PATH: the first block
    commands.put("cluster.locate", (a, r) -> add(r, cluster.getFileSystem().getClient()
        .getLocatedBlocks(Judge.text(a[1]), 0).get(0)));
    // cluster.create PATH REPLICATION BLOCKSIZE: the file's id
    commands.put("cluster.create", (a, r) -> r.add(Long.toString(nameNode().create(
        Judge.text(a[1]), FsPermission.getFileDefault(), CLIENT,
        new EnumSetWritable<>(EnumSet.of(CreateFlag.CREATE, CreateFlag.OVERWRITE)), true,
        Short.parseShort(a[2]), Long.parseLong(a[3]), CryptoProtocolVersion.supported(), null, null)
        .getFileId())));
    // cluster.addBlock PATH FILEID [BLOCK]: the block before, if there is one, with its length
    commands.put("cluster.addBlock", (a, r) -> {
      long end = System.nanoTime() + 60_000_000_000L;
      for (;;) {
        try {
          add(r, nameNode().addBlock(Judge.text(a[1]), CLIENT, a.length > 3 ? block(a, 3) : null,
              null, Long.parseLong(a[2]), null, EnumSet.noneOf(AddBlockFlag.class)));
          return;
        } catch (RemoteException e) { // until a datanode has reported the block before
          if (!e.getClassName().equals(NotReplicatedYetException.class.getName())
              || System.nanoTime() > end) {
            throw e;
          }
          Thread.sleep(10);
        }
      }
    });
    // cluster.complete PATH FILEID BLOCK
    commands.put("cluster.complete", (a, r) -> {
      long end = System.nanoTime() + 60_000_000_000L;
      while (!nameNode().complete(Judge.text(a[1]), CLIENT, block(a, 3), Long.parseLong(a[2]))) {
        if (System.nanoTime() > end) {
          throw new IOException("the name node does not complete the file");
        }
        Thread.sleep(10);
      }
    });
    // cluster.append PATH: the file's id and its last block
    commands.put("cluster.append", (a, r) -> {
      LastBlockWithStatus l = nameNode().append(Judge.text(a[1]), CLIENT,
          new EnumSetWritable<>(EnumSet.of(CreateFlag.APPEND)));
      r.add(Long.toString(l.getFileStatus().getFileId()));
      add(r, l.getLastBlock());
    });
    // cluster.newStamp BLOCK: the generation stamp of another pipeline for the block
    commands.put("cluster.newStamp", (a, r) -> r.add(Long.toString(nameNode()
        .updateBlockForPipeline(block(a, 1), CLIENT).getBlock().getGenerationStamp())));
    // cluster.updatePipeline BLOCK NEWSTAMP NEWLENGTH NODES STORAGEIDS
    commands.put("cluster.updatePipeline", (a, r) -> {
      ExtendedBlock before = block(a, 1);
      ExtendedBlock after = new ExtendedBlock(before.getBlockPoolId(), before.getBlockId(),
          Long.parseLong(a[6]), Long.parseLong(a[5]));
      nameNode().updatePipeline(CLIENT, before, after, Ops.nodes(a[7]), Ops.texts(a[8]));
    });
    // cluster.scan MILLISECONDS N PATH...: has the datanodes' scanners look at the first block of each
    // file, and waits until the name node knows of N corrupt files; the corrupt ones
    commands.put("cluster.scan", (a, r) -> {
      DistributedFileSystem fs = cluster.getFileSystem();
      for (int i = 3; i < a.length; i++) {
        LocatedBlock b = fs.getClient().getLocatedBlocks(Judge.text(a[i]), 0).get(0);
        for (DataNode node : cluster.getDataNodes()) {
          if (node.getXferPort() == b.getLocations()[0].getXferPort()) {
            Scan.soon(node, b.getStorageIDs()[0], b.getBlock());
          }
        }
      }
      long end = System.nanoTime() + Long.parseLong(a[1]) * 1_000_000;
      List<String> corrupt;
      do {
        Thread.sleep(50);
        corrupt = new ArrayList<>();
        for (RemoteIterator<Path> it = fs.listCorruptFileBlocks(new Path("/")); it.hasNext();) {
          corrupt.add(Judge.hexText(it.next().toUri().getPath()));
        }
      } while (corrupt.size() < Integer.parseInt(a[2]) && System.nanoTime() < end);
      r.addAll(corrupt);
    });
    // cluster.stopNode XFERPORT
    commands.put("cluster.stopNode", (a, r) -> {
      int port = Integer.parseInt(a[1]);
      for (int i = 0; i < cluster.getDataNodes().size(); i++) {
        if (cluster.getDataNodes().get(i).getXferPort() == port) {
          stopped.put(port, cluster.stopDataNode(i));
          return;
        }
      }
      throw new IllegalArgumentException("no datanode listens on " + port);
    });
    // cluster.startNodes XFERPORT...: all that have been stopped, on other ports
    commands.put("cluster.startNodes", (a, r) -> {
      for (int i = 1; i < a.length; i++) {
        cluster.restartDataNode(stopped.remove(Integer.parseInt(a[i])), false);
      }
      cluster.waitActive();
    });
  }

  static String sha256(InputStream in) throws Exception {
    MessageDigest d = MessageDigest.getInstance("SHA-256");
    byte[] buf = new byte[1 << 16];
    for (int n; (n = in.read(buf)) >= 0;) {
      d.update(buf, 0, n);
    }
    return Judge.hex(d.digest());
  }
}
